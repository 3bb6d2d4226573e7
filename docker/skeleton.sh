#!/bin/sh
# An image without any registry: empty folders and links. Python, tools and the project are mounted from this machine
# when a container starts (docker/demo.py writes the mounts). Prints the image's name.
set -eu
image=${1:-chaos-site:local}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
for folder in usr etc proc sys dev tmp run var root app site sites; do mkdir "$root/$folder"; done
for folder in bin sbin lib lib64; do ln -s "usr/$folder" "$root/$folder"; done
for file in passwd group nsswitch.conf ld.so.cache alternatives; do
  if [ -e "/etc/$file" ]; then cp -R "/etc/$file" "$root/etc/"; fi
done
tar -C "$root" -c . | docker import - "$image" >/dev/null
echo "$image"
