"""Seccomp filters of system calls, as BPF instructions, made by libseccomp (pyseccomp).

With namespaces, the filter denies calls that could still attack the kernel. Without them, it is the
only isolation and allows what a computation needs: no files, sockets, processes or foreign signals.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from functools import cache
from typing import Any

# namespaces, mounts, other processes, and parts of the kernel that programs do not need
REFUSED = """
acct add_key bpf chroot clock_adjtime clock_settime delete_module fanotify_init fanotify_mark
finit_module fsconfig fsmount fsopen fspick get_mempolicy init_module io_uring_enter
io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl
lookup_dcookie mbind memfd_create memfd_secret migrate_pages mount mount_setattr
move_mount move_pages mq_open msgget name_to_handle_at nfsservctl open_by_handle_at open_tree
perf_event_open personality pidfd_getfd pivot_root process_madvise process_vm_readv
process_vm_writev ptrace quotactl quotactl_fd reboot request_key semget set_mempolicy setdomainname
sethostname setns settimeofday shmat shmget swapoff swapon syslog umount umount2 unshare
userfaultfd vhangup vmsplice
""".split()
# calls that Python needs to compute, read stdin and write stdout
COMPUTES = """
alarm arch_prctl brk clock_getres clock_gettime clock_nanosleep close close_range dup dup2 dup3
epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_wait eventfd2 exit exit_group fstat
futex futex_waitv get_robust_list getcpu getegid geteuid getgid getgroups getitimer getpgid getpgrp
getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid gettid
gettimeofday getuid lseek madvise membarrier mincore mmap mprotect mremap msync munmap nanosleep
newfstatat pause pipe pipe2 poll ppoll pread64 preadv pselect6 pwrite64 pwritev read readv
restart_syscall rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn rt_sigsuspend
rt_sigtimedwait sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getparam
sched_getscheduler sched_yield select set_robust_list set_tid_address setitimer sigaltstack sysinfo
timer_create timer_delete timer_gettime timer_settime times umask uname wait4 waitid write writev
""".split()
# duplicate and flags; other commands could make the kernel send signals to any process
_FCNTL = (fcntl.F_DUPFD, fcntl.F_GETFD, fcntl.F_SETFD, fcntl.F_GETFL, fcntl.F_SETFL, 1030)
_CLONE_THREAD = 0x00010000
_CLONE_NAMESPACES = 0x7E020080  # all CLONE_NEW... flags


@cache
def instructions(alone: bool) -> bytes:
    """The filter for programs with namespaces, or with the filter alone.

    Raises:
        ImportError: pyseccomp is not installed, or the system has no libseccomp.
        RuntimeError: libseccomp does not support this processor.
    """
    try:
        import pyseccomp as seccomp
    except RuntimeError as error:  # pyseccomp's error for a missing library
        raise ImportError(str(error)) from None
    denied = seccomp.ERRNO(errno.EPERM)
    made = seccomp.SyscallFilter(denied if alone else seccomp.ALLOW)
    if alone:
        for name in COMPUTES:
            _add(seccomp, made, seccomp.ALLOW, name)
        thread = seccomp.Arg(0, seccomp.MASKED_EQ, _CLONE_THREAD, _CLONE_THREAD)
        made.add_rule(seccomp.ALLOW, "clone", thread)
        made.add_rule(seccomp.ALLOW, "prlimit64", seccomp.Arg(0, seccomp.EQ, 0))  # own process only
        for command in _FCNTL:
            made.add_rule(seccomp.ALLOW, "fcntl", seccomp.Arg(1, seccomp.EQ, command))
    else:
        for name in REFUSED:
            _add(seccomp, made, denied, name)
        for bit in range(32):  # deny each flag separately
            if _CLONE_NAMESPACES >> bit & 1:
                flag = seccomp.Arg(0, seccomp.MASKED_EQ, 1 << bit, 1 << bit)
                made.add_rule(denied, "clone", flag)
    # a filter cannot read clone3's flags in memory; on ENOSYS the C library falls back to `clone`
    made.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
    with tempfile.TemporaryFile() as file:
        made.export_bpf(file)
        file.seek(0, os.SEEK_SET)
        return file.read()


def _add(seccomp: Any, made: Any, action: int, name: str) -> None:
    """Add a rule for a system call, if this processor and library have it."""
    try:
        number = seccomp.resolve_syscall(seccomp.system_arch(), name)
    except (OSError, ValueError):
        return
    if number >= 0:
        made.add_rule(action, number)
