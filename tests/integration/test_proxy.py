"""An institution whose machines reach the Internet through a proxy alone takes part: real daemons, a real proxy."""

from __future__ import annotations

import stat
from pathlib import Path

from tests.integration.small_training import train
from tests.integration.test_causes import add
from tests.rigs.proxy import proxying
from tests.rigs.site import Cluster, wait_for

from chaosd.addresses import split_address
from chaosd.doctor.check import Level
from chaosd.doctor.site import examine

FAR = "cleveland.invalid"
"""A name that the proxy alone knows."""


def test_a_site_behind_a_proxy_joins_trains_and_comes_back_when_all_its_tunnels_were_cut(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    with proxying(user="anna:open sesame", hosts={FAR: "127.0.0.1"}) as there:
        try:
            one, other = add(cluster, "one"), add(cluster, "other")
            one.configure("test", bootstrap=True, trust=[other], peers=[], start_sites=2)
            other.configure("test", bootstrap=False, trust=[one], peers=[one], start_sites=2)
            password = other.folder / "proxy.auth"
            password.write_text("anna:open sesame\n")
            password.chmod(stat.S_IRUSR | stat.S_IWUSR)
            text = other.config_path.read_text()
            far = f"{FAR}:{split_address(one.address)[1]}"
            assert one.address in text
            one.config_path.write_text(f'advertise = "{far}"\n' + one.config_path.read_text())
            behind = 'advertise = "other.invalid:7400"\n'  # nobody dials it
            behind += f'proxy = "http://{there.address}"\nproxy_auth_file = "{password}"\n'
            other.config_path.write_text(behind + text.replace(one.address, far))
            for number, site in enumerate((one, other), start=1):
                site.start()
                train(site, number)
            wait_for(lambda: min(one.round(), other.round()) > 3, "they train together")
            assert set(there.asked) == {far}
            found = {check.name: check for check in examine(other.config_path)}
            assert found["proxy"].level is Level.OK and there.address in found["proxy"].found
            (peer,) = [check for name, check in found.items() if name.startswith("peer ")]
            assert peer.level is Level.OK and "answers as itself" in peer.found

            before = one.round()
            there.cut()
            wait_for(lambda: min(one.round(), other.round()) > before + 5, "they train on")

            password.write_text("anna:forgotten\n")
            there.cut()
            wait_for(
                lambda: any("does not take the user" in (link.why or "") for link in other.client.status().links),
                "it is told",
            )
        except BaseException:
            print(cluster.tails())
            raise
        finally:
            cluster.end()
