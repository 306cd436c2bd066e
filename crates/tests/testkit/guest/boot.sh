#!/bin/sh
# Boots a Linux guest with Soft-RoCE (rdma_rxe) under QEMU's software emulation:
#     boot.sh WORKDIR NAMESPACE [QEMU-ARGUMENT...]
# Debian's packages of QEMU, kernel and libraries are unpacked in WORKDIR/../rxe, not
# installed, the first time. The namespace has a tap interface with 10.77.0.1/24;
# the guest is 10.77.0.2 and gives a shell on TCP port 9000. Prints the process id
# of QEMU once the guest is ready. Files in WORKDIR/extra go into the guest's /extra.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1" "$1/../rxe"; work=$(cd "$1" && pwd); namespace=$2; shift 2
shared=$(cd "$work/../rxe" && pwd); x=$shared/unpacked; libs=usr/lib/x86_64-linux-gnu
# Guests of several tests may boot at the same time.
exec 9>"$shared/lock"; flock 9
if [ ! -e "$x/complete" ]; then
    rm -rf "$x" "$shared/packages"; mkdir -p "$x" "$shared/packages"; cd "$shared/packages"
    apt-get update -qq >/dev/null 2>&1 || true
    needed=$(apt-get install -s --no-install-recommends qemu-system-x86 | awk '/^Inst lib/{print $2}' | sort -u)
    kernel=$(apt-cache depends linux-image-amd64 | awk '/Depends/{print $2; exit}')
    # shellcheck disable=SC2086
    apt-get download -qq qemu-system-x86 qemu-system-common qemu-system-data seabios $needed $kernel \
        libibverbs1 libibverbs-dev libnl-3-200 libnl-route-3-200 ibverbs-providers iproute2 \
        busybox-static cpio >/dev/null 2>&1
    for package in *.deb; do dpkg-deb -x "$package" "$x"; done
    cd "$shared"; rm -rf packages; touch "$x/complete"
fi
exec 9>&-
cd "$work"; root=$work/root; rm -rf "$root"
for dir in bin sbin usr/bin lib/x86_64-linux-gnu lib64 modules etc/libibverbs.d extra "$libs/libibverbs"; do
    mkdir -p "$root/$dir"
done
gcc -O1 -I"$x/usr/include" "$here/peer.c" -o "$root/bin/peer" -L"$x/$libs" -l:libibverbs.so.1
cp "$x/bin/busybox" "$root/bin/"
install -m755 "$here/init" "$root/init"
for tool in rdma ip; do
    for dir in bin sbin usr/bin usr/sbin; do [ ! -e "$x/$dir/$tool" ] || cp "$x/$dir/$tool" "$root/sbin/$tool"; done
done
cp "$x/etc/libibverbs.d/rxe.driver" "$root/etc/libibverbs.d/"
cp "$x/$libs"/libibverbs/librxe-rdmav*.so "$root/$libs/libibverbs/"
[ ! -d "$work/extra" ] || { cp "$work/extra"/* "$root/extra/"; strip "$root"/extra/*; }
for binary in "$root/sbin/rdma" "$root/sbin/ip" "$root/bin/peer" "$root/$libs"/libibverbs/*.so "$root"/extra/*; do
    LD_LIBRARY_PATH="$x/$libs:$x/lib/x86_64-linux-gnu" ldd "$binary" 2>/dev/null || true
done | grep -o '/[^ ]*\.so[^ ]*' | sort -u | while read -r file; do
    cp -Ln "$file" "$root/lib/x86_64-linux-gnu/" || true
done
cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
# Modules, each behind those that it needs.
modules=$(echo "$x"/lib/modules/*)
: > "$root/modules/order"
add() {
    file=$(find "$modules" -name "$(echo "$1" | tr _ '?').ko" | head -n 1)
    [ -n "$file" ] || return 0
    ! grep -qx "$1.ko" "$root/modules/order" || return 0
    for need in $(grep -aoz 'depends=[^[:cntrl:]]*' "$file" | tr -d '\0' | sed 's/depends=//; s/,/ /g; s/-/_/g'); do
        ( add "$need" )
    done
    cp "$file" "$root/modules/$1.ko"; echo "$1.ko" >> "$root/modules/order"
}
for module in virtio_pci virtio_net failover net_failover crc32c_generic crc32_generic crc32_pclmul \
    ib_core ib_uverbs rdma_rxe; do
    add "$module"
done
strip --strip-debug "$root"/modules/*.ko
(cd "$root" && find . | "$x/bin/cpio" -o -H newc --quiet) > initrd.cpio
rm -f console.log
LD_LIBRARY_PATH="$x/$libs:$x/lib/x86_64-linux-gnu" exec ip netns exec "$namespace" \
    "$x/usr/bin/qemu-system-x86_64" -accel tcg -cpu max -machine q35 -m 512 \
    -L "$x/usr/share/seabios" -L "$x/usr/share/qemu" -nodefaults -no-user-config -display none \
    -chardev file,id=c,path=console.log -serial chardev:c -no-reboot \
    -kernel "$(echo "$x"/boot/vmlinuz*)" -initrd initrd.cpio \
    -append "console=ttyS0 panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check random.trust_cpu=on hugepages=8" \
    -netdev tap,id=n0,ifname=tap0,script=no,downscript=no \
    -device virtio-net-pci,netdev=n0,mac=02:00:00:00:00:02,romfile= "$@" </dev/null
