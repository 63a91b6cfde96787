"""The Debian package, built and installed in a copy of the machine: its root file system below an overlay.

Nothing is downloaded for the copy, and nothing outside of it is changed: a mount namespace of its own holds it.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEXT_VERSION = "0.1.0+next"

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(1800)]

OVERLAY = """\
set -e
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount --bind /dev "$1/root/dev"
mount -t tmpfs tmpfs "$1/root/tmp"
mount -t tmpfs tmpfs "$1/root/run"
cp "$2" "$1/root/tmp/first.deb"
cp "$3" "$1/root/tmp/next.deb"
exec chroot "$1/root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 sh -eux /tmp/steps
"""

STEPS = """\
cd /
dpkg --install /tmp/first.deb
test "$(dpkg-query -W -f '${Status}' backflow)" = "install ok installed"
backflow --version
/usr/bin/backflow check-config --config /etc/backflow/rules.toml
getent passwd backflow
systemd-analyze --no-pager --man=no verify /lib/systemd/system/backflow.service
man -l /usr/share/man/man1/backflow.1.gz | grep -q 'backflow init'
bash -c '. /usr/share/bash-completion/completions/backflow; complete -p backflow'
_BACKFLOW_COMPLETE=bash_complete COMP_WORDS='backflow che' COMP_CWORD=1 backflow | grep -x plain,check-config

echo '[clusters.main]' >> /etc/backflow/rules.toml
echo 'bootstrap_servers = "127.0.0.1:1"' >> /etc/backflow/rules.toml
dpkg --force-confdef --force-confold --install /tmp/next.deb
test "$(dpkg-query -W -f '${Version}' backflow)" = "0.1.0+next"
grep -q '127.0.0.1:1' /etc/backflow/rules.toml
backflow check-config --config /etc/backflow/rules.toml | grep 'clusters: main'

dpkg --remove backflow
test ! -e /opt/backflow
test -e /etc/backflow/rules.toml
mkdir -p /var/lib/private/backflow
dpkg --purge backflow
test ! -e /etc/backflow
test ! -e /var/lib/private/backflow
if getent passwd backflow; then exit 1; fi
if dpkg-query -W backflow; then exit 1; fi
echo ALL STEPS DONE
"""


def repacked(package: Path, directory: Path) -> Path:
    """Return the package with another version and with other shipped rules, as the next release would have."""
    contents = directory / "contents"
    subprocess.run(["dpkg-deb", "--raw-extract", package, contents], check=True)
    control = contents / "DEBIAN/control"
    control.write_text(control.read_text().replace("Version: 0.1.0", f"Version: {NEXT_VERSION}"))
    rules = contents / "etc/backflow/rules.toml"
    rules.write_text(rules.read_text() + "\n# A rule of the next release.\n")
    result = directory / "next.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Zxz", "-z0", "--build", contents, result], check=True)
    return result


@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("dpkg-deb", "unshare", "chroot", "systemd-analyze"))),
    reason="needs root on Debian, to mount a copy of the machine",
)
def test_the_package_installs_upgrades_and_purges(tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts/deb"], cwd=ROOT, env={**os.environ, "DEB_LEVEL": "0"}, check=True, timeout=1500)
    (package,) = (ROOT / "build/dist").glob("backflow_0.1.0_*.deb")
    following = repacked(package, tmp_path)
    mount = tmp_path / "mount"
    mount.mkdir()
    script = OVERLAY.replace("exec chroot", f"cat >$1/root/tmp/steps <<'STEPS'\n{STEPS}STEPS\nexec chroot")
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", mount, package, following],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["ALL STEPS DONE"]), done.stdout + done.stderr
    assert not Path("/opt/backflow").exists()
