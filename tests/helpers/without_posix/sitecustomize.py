"""Takes away the modules, functions and signals that Windows lacks, before anything else is imported, in a
process whose PYTHONPATH has this folder. What libraries use because they see Linux stays."""

import asyncio
import os
import signal
import subprocess  # noqa: F401 - it keeps what it needs itself
import sys
import tempfile  # noqa: F401

MODULES = (
    *("fcntl", "grp", "nis", "ossaudiodev", "posix_ipc", "pty", "pwd", "readline", "resource", "spwd"),
    *("syslog", "termios", "tty", "uvloop"),
)
OF_OS = (
    *(
        "O_CLOEXEC",
        "O_DIRECTORY",
        "O_NOFOLLOW",
        "O_NONBLOCK",
        "O_SYNC",
        "chown",
        "chroot",
        "fchown",
    ),
    *("fdatasync", "fork", "forkpty", "fstatvfs", "getegid", "geteuid", "getgid", "getgroups", "getloadavg"),
    *("getpgid", "getpriority", "getsid", "getuid", "initgroups", "killpg", "lchown", "lockf", "mkfifo"),
    *(
        "nice",
        "openpty",
        "posix_fadvise",
        "posix_fallocate",
        "pread",
        "preadv",
        "pwrite",
        "pwritev",
        "sched_yield",
    ),
    *("sched_getaffinity", "sendfile", "setpgid", "setsid", "statvfs", "sync", "sysconf", "wait3"),
)
OF_SIGNAL = (
    *(
        "SIGALRM",
        "SIGCHLD",
        "SIGCONT",
        "SIGHUP",
        "SIGKILL",
        "SIGPIPE",
        "SIGQUIT",
        "SIGSTOP",
        "SIGTSTP",
        "SIGTTIN",
    ),
    *("SIGTTOU", "SIGUSR1", "SIGUSR2", "SIGWINCH", "alarm", "pause", "pthread_kill", "pthread_sigmask"),
    *("setitimer", "siginterrupt", "sigpending", "sigtimedwait", "sigwait", "sigwaitinfo"),
)


def _refuse(*_):
    raise NotImplementedError


sys.modules.update(dict.fromkeys(MODULES))
for module, names in ((os, OF_OS), (signal, OF_SIGNAL)):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
asyncio.SelectorEventLoop.add_signal_handler = _refuse
