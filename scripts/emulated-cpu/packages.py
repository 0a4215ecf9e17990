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
# Mistakes of Bochs 3.0: what each is, its bytes in the program, and what they should be.
MISTAKES = [
    ("VCVTNE2PS2BF16 rounds the upper half from 64 bytes behind its operand, where the other one lies",
     "8b44240c4589ec4c8d7c2410488d9c2490000000448d34c500000000",
     "8b44240c4589ec4c8d7c24d0488d9c2490000000448d34c500000000"),
    ("VDPBF16PS from memory counts short displacements in numbers, not in vectors as its neighbour in the table does",
     "828504008001000020242100000000000000000000000000" + "80e72c00000000000000000000000000" + "8285440080010000",
     "828504008001000020242100000000000000000000000000" + "80e72c00000000000000000000000000" + "8285040080010000"),
    ("XSAVE writes a tile's rows where its bytes in a row belong, and those where rows do",
     "8b0cc26641894c420e8b4cc20441880c01",
     "8b4cc2046641894c420e8b0cc241880c01"),
    ("XRSTOR looks for what follows a component that it is not asked for where that lies", "4585f474e0418b0f", "4585f474d3418b0f"),
]
KEYRING = pathlib.Path("/usr/share/keyrings/debian-archive-keyring.gpg")
LEFT_OUT = ["./usr/share/doc", "./usr/share/icons", "./usr/share/locale", "./usr/share/man", "./usr/lib/modules/*/kernel"]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "ballast/emulated-cpu"


class Missing(Exception):
    """What this machine lacks, and what to do."""


def unpacked():
    """The folder with the packages' files. Fetched once; delete it to fetch anew."""
    # A list of other packages, or other mistakes, have another folder.
    root = CACHE / hashlib.sha256(repr([SUITE, PACKAGES, MISTAKES]).encode()).hexdigest()[:8]
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
    """Puts right what this Bochs does wrong."""
    code = emulator.read_bytes()
    for what, wrong, right in MISTAKES:
        wrong, right = bytes.fromhex(wrong), bytes.fromhex(right)
        if code.count(wrong) != 1:
            raise Missing(f"this is another Bochs than 3.0: see whether it still is so that {what}; change packages.py")
        code = code.replace(wrong, right)
    emulator.write_bytes(code)


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
