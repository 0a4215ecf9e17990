"""A disk that boots Linux: GRUB, and a partition that is a tar of the kernel and of its first files."""
import io
import pathlib
import stat
import struct
import subprocess
import tarfile

from packages import program

SECTOR = 512
# Where the partition begins: GRUB's core lies before it.
FIRST = 2048
# What a disk's size must be a multiple of: 16 heads of 63 sectors.
CYLINDER = 16 * 63 * SECTOR
# Linux offers AMX where it can withhold the tiles from processes that do not ask (XFD, feature 324). Bochs has the tiles and
# not XFD: Linux is told that it has, and nothing is withheld. Power management and its tables only take time.
COMMAND_LINE = ("console=ttyS0 quiet loglevel=2 setcpuid=324 acpi=off nokaslr mitigations=off tsc=reliable clocksource=tsc "
                "random.trust_cpu=on cryptomgr.notests nmi_watchdog=0 rcupdate.rcu_expedited=1")
GRUB = f"set root=(hd0,msdos1)\nlinux /vmlinuz {COMMAND_LINE}\ninitrd /initrd\nboot\n"


def write(path, root, files):
    """path: the disk. root: the packages' folder. files: what the guest finds, `{path in the guest: path here}`."""
    kernel = next(root.glob("usr/lib/modules/*/vmlinuz"))
    archive = tar({"vmlinuz": kernel.read_bytes(), "initrd": cpio(files)})
    front = bytearray((root / "usr/lib/grub/i386-pc/boot.img").read_bytes() + core(path.with_suffix(".core"), root))
    if len(front) > FIRST * SECTOR:
        raise ValueError(f"GRUB's core has {len(front)} bytes and does not fit before the partition")
    # All four entries: GRUB keeps code for diskettes where they lie.
    front[446:510] = partition(len(archive) // SECTOR).ljust(64, b"\0")
    disk = bytes(front).ljust(FIRST * SECTOR, b"\0") + archive
    path.write_bytes(disk.ljust(-(-len(disk) // CYLINDER) * CYLINDER, b"\0"))


def core(path, root):
    """GRUB's own program, with the commands of `GRUB` in it."""
    commands = path.with_suffix(".cfg")
    commands.write_text(GRUB)
    modules = ["biosdisk", "part_msdos", "tar", "linux"]
    subprocess.run(program(root, "grub-mkimage", "-O", "i386-pc", "-d", root / "usr/lib/grub/i386-pc", "-p", "/",
                           "-c", commands, "-o", path, *modules), check=True)
    return path.read_bytes()


def partition(sectors):
    """An entry of the partition table: bootable, of Linux's type, addressed by sector."""
    return struct.pack("<B3sB3sII", 0x80, b"\xff" * 3, 0x83, b"\xff" * 3, FIRST, sectors)


def tar(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def cpio(files):
    """The kernel's first files, all of them programs, in the format `newc`."""
    folders = sorted({str(parent) for name in files for parent in pathlib.PurePosixPath(name).parents} - {"."})
    out = b"".join(entry(name, stat.S_IFDIR | 0o755, b"") for name in folders)
    out += b"".join(entry(name, stat.S_IFREG | 0o755, pathlib.Path(here).read_bytes()) for name, here in files.items())
    return out + entry("TRAILER!!!", 0, b"")


def entry(name, mode, data):
    name = name.encode() + b"\0"
    numbers = [0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0]
    head = b"070701" + b"".join(b"%08X" % n for n in numbers) + name
    return padded(head) + padded(data)


def padded(data):
    return data + b"\0" * (-len(data) % 4)
