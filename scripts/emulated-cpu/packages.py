"""The emulator, a kernel, a boot loader and a shell from Debian's archive, unpacked into a folder of the user's."""
import contextlib
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile

SUITE = "trixie"
# The kernel is a newer one because its command line can name features of the processor (see disk.py).
PACKAGES = ["bochs", "bochs-term", "bochsbios", "grub-common", "grub-pc-bin", "busybox-static", "util-linux",
            f"linux-image-cloud-amd64/{SUITE}-backports"]
# In Bochs 3.0, where the upper half's loop begins; in it, where the operand's address is taken, and what that should be.
UPPER_HALF = bytes.fromhex("8b44240c4589ec4c8d7c2410488d9c2490000000448d34c500000000")
OPERAND, OPERAND_MENDED = bytes.fromhex("4c8d7c2410"), bytes.fromhex("4c8d7c24d0")
KEYRING = pathlib.Path("/usr/share/keyrings/debian-archive-keyring.gpg")
LEFT_OUT = ["./usr/share/doc", "./usr/share/icons", "./usr/share/locale", "./usr/share/man", "./usr/lib/modules/*/kernel"]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "ballast/emulated-cpu"


class Missing(Exception):
    """What this machine lacks, and what to do."""


def unpacked():
    """The folder with the packages' files. Fetched once; delete it to fetch anew."""
    # A list of other packages has another folder.
    root = CACHE / hashlib.sha256(" ".join([SUITE, *PACKAGES]).encode()).hexdigest()[:8]
    if not root.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            whole = pathlib.Path(scratch) / "root"
            fetch(pathlib.Path(scratch) / "apt", whole)
            with contextlib.suppress(OSError):  # Another run may have fetched the same meanwhile.
                whole.rename(root)
    return root


def fetch(state, root):
    """Asks an apt of its own, beside the system's: it resolves what the packages need and holds every file against the
    SHA-256 in the archive's signed index."""
    for tool in ["apt-get", "dpkg-deb"]:
        if not shutil.which(tool):
            raise Missing(f"{tool} is missing: this needs Debian, or Ubuntu with the package debian-archive-keyring")
    if not KEYRING.exists():
        raise Missing(f"{KEYRING} is missing: install the package debian-archive-keyring")
    (state / "lists/partial").mkdir(parents=True, exist_ok=True)
    (state / "cache/archives/partial").mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    archive = f"deb [signed-by={KEYRING}] http://deb.debian.org/debian"
    (state / "sources.list").write_text(f"{archive} {SUITE} main\n{archive} {SUITE}-backports main\n")
    print(f"==> fetching {', '.join(PACKAGES)} and what they need (about 130 MB)", flush=True)
    apt(state, "update")
    apt(state, "install", "--download-only", "--no-install-recommends", "--yes", *PACKAGES)
    root.mkdir(parents=True)
    for package in sorted((state / "cache/archives").glob("*.deb")):
        unpack(package, root)
    mend(root / "usr/bin/bochs-bin")


def mend(emulator):
    """Bochs 3.0 rounds the upper half of VCVTNE2PS2BF16 from 64 bytes behind its operand, where the other one lies."""
    code = emulator.read_bytes()
    if code.count(UPPER_HALF) != 1:
        raise Missing("this is another Bochs than 3.0: see whether its VCVTNE2PS2BF16 is right, then change packages.py")
    emulator.write_bytes(code.replace(UPPER_HALF, UPPER_HALF.replace(OPERAND, OPERAND_MENDED)))


def apt(state, *command):
    options = {"Dir::State": state, "Dir::State::Lists": state / "lists", "Dir::State::status": state / "status",
               "Dir::Cache": state / "cache", "Dir::Etc::SourceList": state / "sources.list",
               "Dir::Etc::SourceParts": "/dev/null", "APT::Architecture": "amd64", "APT::Sandbox::User": "",
               "Acquire::Languages": "none", "Debug::NoLocking": 1}
    flags = [flag for name, value in options.items() for flag in ("-o", f"{name}={value}")]
    if subprocess.run(["apt-get", "-qq", *flags, *command]).returncode:
        raise Missing(f"apt-get {command[0]} failed: Debian's packages could not be downloaded")


def unpack(package, root):
    files = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE)
    out = [f"--exclude={path}" for path in LEFT_OUT]
    subprocess.run(["tar", "-x", "-C", root, "--no-same-owner", *out], stdin=files.stdout, check=True)
    if files.wait():
        raise Missing(f"{package.name} could not be unpacked")


def program(root, name, *args):
    """A command that runs a program of the packages on their own C library, which may be newer than the system's."""
    loader = root / "usr/lib64/ld-linux-x86-64.so.2"
    return [loader, "--library-path", root / "usr/lib/x86_64-linux-gnu", root / "usr/bin" / name, *args]
