"""Makes compose.yaml from six.toml: a service for each site, a network of its own for each link. `python compose.py`.

What it writes is accepted by docker-compose 1.29 and by docker compose 2; a test checks that it is up to date.
"""

from __future__ import annotations

from pathlib import Path

from chaos_lab.scenario import LinkSpec, Scenario, load_scenario

HERE = Path(__file__).resolve().parent
OVERLAY = HERE / "six.toml"
PAGE = HERE / "compose.yaml"
HEAD = """\
# Made from six.toml by `python docker/compose.py`; do not edit.
#
#   docker compose -f docker/compose.yaml run --rm setup      keys and configurations, once; into ./docker/sites
#   docker compose -f docker/compose.yaml up -d               all sites
#   docker compose -f docker/compose.yaml logs -f basel
#   docker compose -f docker/compose.yaml stop turin          leaves after the running round
#   docker compose -f docker/compose.yaml down
version: "3.8"

x-site: &site
  image: chaos-site:local
  build: {context: .., dockerfile: docker/Dockerfile}
  cap_add: [NET_ADMIN]  # the entry point sets the rates of its own links
  environment: {OMP_NUM_THREADS: "1", PYTHONUNBUFFERED: "1"}
  stop_grace_period: 60s  # a site that is stopped leaves the run first

services:
  setup:
    image: chaos-site:local
    build: {context: .., dockerfile: docker/Dockerfile}
    command: ["setup"]
    profiles: ["setup"]
    network_mode: none
    volumes: ["${CHAOS_SITES:-./sites}:/sites"]
"""


def network_name(link: LinkSpec) -> str:
    return "-".join(link.between)


def subnet(overlay: Scenario, link: LinkSpec) -> str:
    """Eight addresses a link; the bridge takes .1, the ends .2 and .3."""
    return f"10.90.{overlay.links.index(link) + 1}.0/29"


def address(overlay: Scenario, link: LinkSpec, site: str) -> str:
    """The address of one end of a link."""
    return subnet(overlay, link).replace(".0/29", f".{2 + link.between.index(site)}")


def compose(overlay: Scenario) -> str:
    """The whole file."""
    lines = [HEAD]
    for site in overlay.sites:
        lines += [f"  {site.name}:", "    <<: *site", f"    hostname: {site.name}"]
        lines += [f'    command: ["site", "{site.name}"]']
        lines += [f'    volumes: ["${{CHAOS_SITES:-./sites}}/{site.name}:/site"]', "    networks:"]
        for link in overlay.links:
            if site.name in link.between:
                lines += [f"      {network_name(link)}: {{ipv4_address: {address(overlay, link, site.name)}}}"]
        lines += [""]
    lines += ["networks:"]
    for link in overlay.links:
        config = f"{{internal: true, ipam: {{config: [{{subnet: {subnet(overlay, link)}}}]}}}}"
        lines += [f"  {network_name(link)}: {config}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(compose(load_scenario(OVERLAY)), encoding="utf-8")
    print(f"wrote {PAGE.name}")
