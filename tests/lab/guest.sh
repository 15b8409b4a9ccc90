#!/bin/bash
# guest.sh: build the tiny Linux guest in $LAB_DIR/guest: the distribution's cloud kernel
# (`vmlinux`, unpacked: the decompressor takes seconds under TCG) and an initramfs of
# busybox, the virtio modules and a command loop on the serial line.  `boot.img` is a disk
# (FAT without partitions) with both and a boot loader: for guests that boot from a volume.
. "$(dirname "$0")/env.sh"; . "$LAB_SRC/lib.sh"
OUT=$LAB_DIR/guest
MODULES="virtio_pci virtio_blk virtio_scsi sd_mod evdev button"
MADE_BY=$(sha256sum <"$LAB_SRC/guest.sh")
[ "$(cat "$OUT/.made-by" 2>/dev/null)" != "$MADE_BY" ] || exit 0
WORK=$(mktemp -d); trap 'rm -rf "$WORK"' EXIT
mkdir -p "$OUT"; rm -f "$OUT"/*.deb; cd "$WORK"

# The image package is unpacked only: installing it would run hooks for a boot loader.
package=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image/{print $2; exit}')
apt-get download "$package" >"$LAB_DIR/log/guest.log" 2>&1
dpkg-deb -x linux-image-*.deb image

# A bzImage holds the ELF kernel as an LZ4 stream in the legacy frame.  lz4 complains of
# what follows the stream; what counts is that an ELF file comes out.
"$LAB_PYTHON" - image/boot/vmlinuz-* vmlinux <<'PY'
import subprocess, sys
blob, magic = open(sys.argv[1], "rb").read(), b"\x02\x21\x4c\x18"
at = blob.find(magic)
while at >= 0:
    out = subprocess.run(["lz4", "-dc"], input=blob[at:], capture_output=True).stdout
    if out[:4] == b"\x7fELF":
        open(sys.argv[2], "wb").write(out)
        break
    at = blob.find(magic, at + 1)
else:
    sys.exit("no LZ4 payload with an ELF kernel found")
PY

mkdir -p root/{bin,dev,proc,sys,modules,tmp,etc/acpi/PWRF,var/log,var/run}
cp /bin/busybox root/bin/busybox
ln -s busybox root/bin/sh

# Modules in the order they must be loaded, as their own "depends" says.
order=()
add() {
  local file dependency
  case " ${order[*]-} " in *" $1 "*) return 0 ;; esac
  file=$(find image/lib/modules -name "${1//_/[-_]}.ko" | head -1)
  [ -n "$file" ] || return 0 # built in
  for dependency in $(strings_depends "$file"); do add "${dependency//-/_}"; done
  cp "$file" "root/modules/$1.ko"
  order+=("$1")
}
strings_depends() { tr '\0' '\n' <"$1" | sed -n 's/^depends=//p' | tr ',' ' '; }
for module in $MODULES; do add "$module"; done
printf '%s\n' "${order[@]}" >root/modules/order

# What acpid does when the power button is pressed: how a hypervisor asks for a shutdown.
printf '#!/bin/sh\npoweroff -f\n' >root/etc/acpi/PWRF/00000080
chmod +x root/etc/acpi/PWRF/00000080

# One command per line; each answer ends in "#rc=N".
cat >root/init <<'I'
#!/bin/sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for m in $(cat /modules/order); do insmod /modules/$m.ko; done
stty -F /dev/ttyS0 -echo 2>/dev/null
acpid
echo "GUEST-READY $(cut -d' ' -f1 /proc/uptime)" >/dev/ttyS0
while :; do
  while read -r line; do
    [ -n "$line" ] || continue
    sh -c "$line" 2>&1 </dev/null; echo "#rc=$?"
  done </dev/ttyS0 >/dev/ttyS0
done
I
chmod +x root/init
(cd root && find . -print0 | LC_ALL=C sort -z | cpio --null -o -H newc --quiet) >initramfs.cpio

truncate -s 32M boot.img
mkfs.fat -F 16 boot.img >/dev/null
syslinux --install boot.img
mcopy -i boot.img image/boot/vmlinuz-* ::vmlinuz
mcopy -i boot.img initramfs.cpio ::initramfs
mv vmlinux initramfs.cpio boot.img linux-image-*.deb "$OUT/" # the package: for who wants more modules
echo "$MADE_BY" >"$OUT/.made-by"
