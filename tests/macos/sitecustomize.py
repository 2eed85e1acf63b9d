"""Python as it is on macOS, for a process that has this folder on its PYTHONPATH.

There is neither /proc nor /sys, the platform calls itself Darwin, and what Python's documentation
limits to Linux, or excludes from macOS, is missing from the standard library.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import sys
import types

LINUX_ONLY = {
    os: (
        "copy_file_range,eventfd,eventfd_read,eventfd_write,fdatasync,getrandom,getresgid,"
        "getresuid,getxattr,listxattr,memfd_create,pidfd_open,pipe2,posix_fadvise,posix_fallocate,"
        "preadv2,pwritev2,removexattr,sched_getaffinity,sched_getparam,sched_getscheduler,"
        "sched_rr_get_interval,sched_setaffinity,sched_setparam,sched_setscheduler,setns,"
        "setresgid,setresuid,setxattr,splice,timerfd_create,unshare,waitid,O_DIRECT,O_LARGEFILE,"
        "O_NOATIME,O_PATH,O_RSYNC,O_TMPFILE,RTLD_DEEPBIND,GRND_NONBLOCK,POSIX_FADV_DONTNEED"
    ),
    signal: (
        "pidfd_send_signal,sigtimedwait,sigwaitinfo,SIGCLD,SIGPOLL,SIGPWR,SIGRTMAX,SIGRTMIN,SIGSTKFLT"
    ),
    fcntl: (
        "F_ADD_SEALS,F_GETPIPE_SZ,F_GET_SEALS,F_NOTIFY,F_OFD_GETLK,F_OFD_SETLK,F_OFD_SETLKW,"
        "F_SETPIPE_SZ"
    ),
    select: "epoll,EPOLLIN,EPOLLOUT,EPOLL_CLOEXEC",
}
LINUX_ONLY_SOCKETS = (
    "AF_ALG,AF_CAN,AF_NETLINK,AF_PACKET,AF_VSOCK,MSG_CMSG_CLOEXEC,MSG_NOSIGNAL,SOCK_CLOEXEC,"
    "SOCK_NONBLOCK,SO_BINDTODEVICE,SO_PEERCRED,TCP_KEEPIDLE,TCP_USER_TIMEOUT"
)
HIDDEN = ("/proc", "/sys")


def _hidden(path: object) -> bool:
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    text = os.fspath(path) if hasattr(path, "__fspath__") else path
    return isinstance(text, str) and any(f"{text}/".startswith(f"{top}/") for top in HIDDEN)


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook: what opens or lists a hidden path finds nothing there."""
    if event in {"open", "os.listdir", "os.scandir", "os.readlink"} and _hidden(arguments[0]):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])


def _hiding(function: types.BuiltinFunctionType) -> types.FunctionType:
    def looked_up(path: object, *more: object, **options: object) -> object:
        if _hidden(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return function(path, *more, **options)

    return looked_up  # type: ignore[return-value]


def _strip(module: types.ModuleType, names: str) -> None:
    for name in names.split(","):
        vars(module).pop(name, None)


for _module, _names in LINUX_ONLY.items():
    _strip(_module, _names)
# Only now, since it imports `selectors`, which looks for epoll.
import socket  # noqa: E402

_strip(socket, LINUX_ONLY_SOCKETS)
# macOS' name of TCP_KEEPIDLE; the number is Linux', on which the simulation runs.
socket.TCP_KEEPALIVE = 4  # type: ignore[attr-defined]
for _name in ("stat", "lstat", "readlink", "statvfs"):
    setattr(os, _name, _hiding(getattr(os, _name)))
sys.addaudithook(_refuse)
sys.platform = "darwin"
os.uname = lambda: os.uname_result(("Darwin", "mac", "24.0.0", "Darwin Kernel", "arm64"))
# urllib asks macOS for the proxies of its settings.
_proxies = types.ModuleType("_scproxy")
_proxies._get_proxy_settings = dict  # type: ignore[attr-defined]
_proxies._get_proxies = dict  # type: ignore[attr-defined]
sys.modules["_scproxy"] = _proxies
