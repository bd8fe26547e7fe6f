"""The system-call filter of every sandboxed process: classic BPF, assembled here, without libseccomp.

Refused with EPERM: what escapes, inspects or reshapes namespaces, and kernel surface that tasks never need. clone3 gets
ENOSYS (its flags cannot be read by a filter; glibc then uses clone, whose namespace flags are refused).
Memory that no process holds is in no sum of theirs: memfd_create gets ENOSYS, System V segments are of one page.
Sockets: unix, inet and inet6 only (vsock and AF_ALG are not covered by network namespaces).
Numbers: Linux arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
"""

from __future__ import annotations

import errno
import platform
import struct

_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NR, _ARCH, _ARG0, _ARG1, _ARG1_HIGH = (
    0,
    4,
    16,
    24,
    28,
)  # offsets in struct seccomp_data; low words of the arguments (little endian)
_NAMESPACE_FLAGS = 0x7E020000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}
_SOCKET_DOMAINS = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
_SEGMENT = 4096  # bytes: enough for the lock of a PostgreSQL server
_TERMINAL_INJECTION = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX

# name: (x86_64, aarch64); None where the architecture has no such call
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "perf_event_open": (298, 241), "bpf": (321, 280), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "statmount": (457, 457),
    "listmount": (458, 458), "unshare": (272, 97), "setns": (308, 268),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "fanotify_init": (300, 262),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443), "syslog": (103, 116),
    "sethostname": (170, 161), "setdomainname": (171, 162), "settimeofday": (164, 170), "clock_adjtime": (305, 266),
    "mbind": (237, 235), "set_mempolicy": (238, 237), "migrate_pages": (256, 238), "move_pages": (279, 239),
    "memfd_secret": (447, 447),
    "lookup_dcookie": (212, 18), "vhangup": (153, 58), "nfsservctl": (180, 42),
    "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None), "uselib": (134, None),
    "ustat": (136, None), "sysfs": (139, None), "_sysctl": (156, None),
}  # fmt: skip
_SPECIAL = {"clone": (56, 220), "clone3": (435, 435), "socket": (41, 198), "socketpair": (53, 199), "ioctl": (16, 29)}
_SPECIAL |= {"memfd_create": (319, 279), "shmget": (29, 194)}
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def program(machine: str | None = None) -> bytes:
    """The filter as an array of struct sock_filter (8 bytes each), for `bwrap --seccomp` or prctl.

    Raises NotImplementedError for an architecture without a table here.
    """
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES:
        raise NotImplementedError(f"no system-call table for {machine}: sandboxes run on {sorted(_ARCHITECTURES)}")
    column, audit_arch = _ARCHITECTURES[machine]
    special = {name: numbers[column] for name, numbers in _SPECIAL.items()}
    refuse = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    allow = (_RETURN, 0, 0, _ALLOW)

    code = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, audit_arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NR)]
    if machine == "x86_64":  # x32 calls share the architecture value and would pass a list of numbers
        code += [(_AT_LEAST, 0, 1, 0x40000000), refuse]
    for numbers in _REFUSED.values():
        if (number := numbers[column]) is not None:
            code += [(_EQUAL, 0, 1, number), refuse]
    for name in ("clone3", "memfd_create"):
        code += [(_EQUAL, 0, 1, special[name]), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    code += [(_EQUAL, 0, 6, special["shmget"]), (_LOAD, 0, 0, _ARG1_HIGH), (_EQUAL, 0, 2, 0), (_LOAD, 0, 0, _ARG1)]
    code += [(_AT_LEAST, 0, 1, _SEGMENT + 1), refuse, allow]
    code += [(_EQUAL, 0, 4, special["clone"]), (_LOAD, 0, 0, _ARG0), (_ANY_BIT, 0, 1, _NAMESPACE_FLAGS), refuse, allow]
    for name in ("socket", "socketpair"):
        n = len(_SOCKET_DOMAINS)
        code += [(_EQUAL, 0, n + 3, special[name]), (_LOAD, 0, 0, _ARG0)]
        code += [(_EQUAL, n - i, 0, domain) for i, domain in enumerate(_SOCKET_DOMAINS)]
        code += [refuse, allow]
    n = len(_TERMINAL_INJECTION)
    code += [(_EQUAL, 0, n + 3, special["ioctl"]), (_LOAD, 0, 0, _ARG1)]
    code += [(_EQUAL, n - i, 0, request) for i, request in enumerate(_TERMINAL_INJECTION)]
    code += [allow, refuse, allow]
    return b"".join(struct.pack("=HBBI", *step) for step in code)
