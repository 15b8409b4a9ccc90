#!/bin/bash
# build.sh service|agent DIRECTORY: a Debian package with an environment of its own below /opt, made of the
# lock.  Our packages have common names (`sql`, `handlers`), so they share no site-packages with anybody.
# Debian 12: python3-venv; for the agent libvirt-dev, pkg-config, gcc, python3-dev, too.
set -euo pipefail
umask 022
PROGRAM=$1 OUT=$(realpath -m "$2")
ROOT=$(realpath "$(dirname "$0")/../..")
export PIP_DISABLE_PIP_VERSION_CHECK=1 SOURCE_DATE_EPOCH
SOURCE_DATE_EPOCH=$(git -C "$ROOT" log -1 --format=%ct 2>/dev/null || stat -c %Y "$ROOT/pyproject.toml")

case $PROGRAM in
service) NAME=attachment-ledger SETTINGS=ledger.toml SUMMARY="service and command line" ;;
agent) NAME=attachment-ledger-agent SETTINGS=agent.toml SUMMARY="agent of a hypervisor" ;;
*) echo "error: service or agent, not '$PROGRAM'" >&2; exit 2 ;;
esac
declare -A NEEDS=(
  [service]="systemd, ca-certificates"
  [agent]="systemd, ca-certificates, libvirt0
Recommends: qemu-utils, open-iscsi, multipath-tools, nvme-cli, lsscsi, nfs-common, cryptsetup-bin"
)
VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' "$ROOT/pyproject.toml")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/tree home=/opt/$NAME
mkdir -p "$tree/DEBIAN" "$tree/usr/bin" "$tree/etc/attachment-ledger" "$tree/usr/share/doc/$NAME" "$OUT"

# Debian's python3 is what it will run on.  The environment is made here, and says that it is in $home.
/usr/bin/python3 -m venv "$tree$home"
pip=("$tree$home/bin/python" -m pip --quiet --no-input)
"${pip[@]}" install --no-compile --require-hashes -r "$ROOT/requirements-$PROGRAM.lock"
"$ROOT/.venv/bin/python" -m hatchling build -t wheel -d "$work" >/dev/null
"${pip[@]}" install --no-compile --no-deps "$work"/*.whl
"${pip[@]}" uninstall --yes setuptools pip
for info in "$tree$home"/lib/python3*/site-packages/attachment_ledger-*.dist-info; do # for --version
  git -C "$ROOT" rev-parse --short=12 HEAD >"$info/COMMIT" 2>/dev/null || rm -f "$info/COMMIT"
done
find "$tree$home" -name __pycache__ -prune -exec rm -rf {} +
rm -f "$tree$home"/bin/[aA]ctivate* "$tree$home"/lib/python3*/site-packages/attachment_ledger-*/direct_url.json
grep -rlIF "$tree" "$tree$home" | xargs -r sed -i "s#$tree##g"
[ "$PROGRAM" = service ] || rm "$tree$home/bin/attachment-ledger"
[ "$PROGRAM" = agent ] || rm "$tree$home/bin/attachment-ledger-agent"
"$ROOT/deploy/sbom.sh" "$PROGRAM" >"$tree$home/sbom.cdx.json"  # not with the docs: images leave those out
ln -s "$home/bin/$NAME" "$tree/usr/bin/$NAME"

# Units, users and directories; what an operator reads and Prometheus loads.
install -Dm644 "$ROOT/deploy/systemd/$NAME.service" -t "$tree/lib/systemd/system"
[ "$PROGRAM" = agent ] || # which is root
  install -Dm644 "$ROOT/deploy/systemd/$NAME.sysusers" "$tree/usr/lib/sysusers.d/$NAME.conf"
install -Dm644 "$ROOT/deploy/systemd/$NAME.tmpfiles" "$tree/usr/lib/tmpfiles.d/$NAME.conf"
install -m644 "$ROOT/LICENSE" "$tree/usr/share/doc/$NAME/copyright"
install -m644 "$ROOT/CHANGELOG.md" "$ROOT/requirements-$PROGRAM.lock" -t "$tree/usr/share/doc/$NAME"
if [ "$PROGRAM" = service ]; then
  install -m644 "$ROOT"/deploy/systemd/$NAME-{forward@.service,sign.service,sign.timer} -t "$tree/lib/systemd/system"
  cp -r "$ROOT"/docs/{alerts,runbooks,grafana,policy.yaml.sample} "$ROOT"/deploy/*.cfg \
    "$tree/usr/share/doc/$NAME/"
else
  install -m644 "$ROOT"/deploy/systemd/$NAME-survey.{service,timer} -t "$tree/lib/systemd/system"
fi

cat >"$tree/DEBIAN/control" <<CONTROL
Package: $NAME
Version: $VERSION
Architecture: $(dpkg --print-architecture)
Maintainer: Attachment ledger developers <root@localhost>
Depends: python3 (>= 3.11), python3 (<< 3.12), ${NEEDS[$PROGRAM]}
Section: admin
Priority: optional
Installed-Size: $(du -sk "$tree/opt" | cut -f1)
Description: Attachment ledger, $SUMMARY
 Event-sourced control plane for block-volume attachments (OpenStack Cinder, libvirt).
 Settings are in /etc/attachment-ledger/$SETTINGS.
CONTROL
cat >"$tree/DEBIAN/postinst" <<POSTINST
#!/bin/sh
# Nothing is started: there are no settings yet, and an upgrade waits for \`db upgrade\`.
set -e
if [ "\$1" = configure ]; then
    [ ! -e /usr/lib/sysusers.d/$NAME.conf ] || systemd-sysusers /usr/lib/sysusers.d/$NAME.conf
    systemd-tmpfiles --create /usr/lib/tmpfiles.d/$NAME.conf
    # The programs' users cannot write there: each start would compile all of it.
    $home/bin/python -m compileall -q $home/lib
    [ ! -d /run/systemd/system ] || systemctl daemon-reload
fi
POSTINST
cat >"$tree/DEBIAN/prerm" <<PRERM
#!/bin/sh
set -e
find $home -name __pycache__ -prune -exec rm -rf {} +
if [ "\$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now $NAME.service
    [ $PROGRAM = service ] || systemctl disable --now $NAME-survey.timer
    [ $PROGRAM = agent ] || { # a template is disabled with all its names, and cannot be stopped: \`--now\` fails
        systemctl disable --now $NAME-sign.timer
        systemctl stop "$NAME-forward@*.service"
        systemctl disable $NAME-forward@.service
    }
fi
PRERM
chmod 755 "$tree/DEBIAN/postinst" "$tree/DEBIAN/prerm"
install -m755 "$ROOT/deploy/debian/postrm" "$tree/DEBIAN/postrm"
find "$tree" -newermt "@$SOURCE_DATE_EPOCH" -exec touch --no-dereference -d "@$SOURCE_DATE_EPOCH" {} +
dpkg-deb --root-owner-group --build "$tree" "$OUT" >/dev/null
echo "$OUT/${NAME}_${VERSION}_$(dpkg --print-architecture).deb"
