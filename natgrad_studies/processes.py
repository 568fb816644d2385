"""Processes that share the tasks of a study. What they run is shown here, as if it ran here."""

import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from functools import partial
from multiprocessing import connection, parent_process
from queue import SimpleQueue
from time import monotonic
from typing import Any, TypeVar

from natgrad import InputError
from natgrad.descent import BOARD, Watch, show_run

from . import stopping
from .methods import label
from .registry import import_beside
from .running import prepare_process
from .stopping import ENDING, without_ctrl_c

Begin = Callable[..., Callable[[Any], Any]]
Failure = TypeVar("Failure", bound=BaseException)
GLANCE = 0.1  # seconds after which who waits looks whether the program is to end


class Crew:
    """A context with processes that take tasks, each one after the other.

    `begin(number, *arguments)` is called once in every process, numbered from 0, and returns the
    function that makes a result of a task. When the context is left by an exception, runs end at
    their next safe point or after `GRACE`. No process outlives this one, whatever ends it.

    ```python
    with Crew(begin, settings) as crew:
        crew.resize(3)
        results = crew.wait([crew.submit(crew.do, task) for task in tasks])
    ```
    """

    def __init__(self, begin: Begin, *arguments: Any):
        self._begin, self._arguments = begin, arguments
        self._workers: list[Worker] = []
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        self._threads: ThreadPoolExecutor | None = None

    def resize(self, count: int) -> None:
        """Start processes, or end some, until there are so many. Not after the first task."""
        while len(self._workers) > count:
            self._workers.pop().process.kill()
        while len(self._workers) < count:
            self._workers.append(Worker(self._begin, (len(self._workers), *self._arguments)))

    def submit(self, call: Callable[[Any], Any], task: Any) -> Future:
        """Have a thread make `call(task)`, in which `do(task)` is called, when it is its turn."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(len(self._workers))
            for worker in self._workers:
                self._idle.put(worker)
        return self._threads.submit(copy_context().run, call, task)

    def do(self, task: Any) -> Any:
        """The result of a task, or its exception, from a process that is free."""
        worker = self._idle.get()
        try:
            return worker.do(task)
        finally:
            self._idle.put(worker)

    def wait(self, submitted: list[Future]) -> list[Any]:
        """All results, or the first exception."""
        for finished in as_completed(submitted):
            finished.result()
        return [finished.result() for finished in submitted]

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: Any) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        try:
            if kind is not None:
                self._stop()
        finally:
            for worker in self._workers:
                worker.process.kill()  # not waited for: a GPU takes its time to let go of one
            if self._threads is not None:
                self._threads.shutdown()

    def _stop(self) -> None:
        """Ask all processes to end, and wait until they have, but not for long."""
        for worker in self._workers:
            worker.process.terminate()
        end = monotonic() + stopping.GRACE
        for worker in self._workers:
            worker.process.join(max(0.0, end - monotonic()))


class Worker:
    """One of the processes, seen from this one."""

    def __init__(self, begin: Begin, arguments: tuple[Any, ...]):
        context = import_beside(begin.__module__)
        self._pipe, theirs = context.Pipe()
        given = (theirs, dict(os.environ), begin, arguments)  # the server may be older than these
        self.process = context.Process(target=serve, args=given, daemon=True)
        with without_ctrl_c():
            self.process.start()
        theirs.close()

    def do(self, task: Any) -> Any:
        """The result of the task; its runs are shown meanwhile, and its warnings are given."""
        with suppress(OSError):  # it has ended, and may have said why
            self._pipe.send(task)
        with ExitStack() as shown:
            while True:
                kind, *content = self._receive(task)
                if kind == "result":
                    return content[0]
                if kind == "error":
                    raise content[0]
                if kind == "warning":
                    _warn(*content)
                elif kind == "show":
                    name, limits, asked = content
                    shown.enter_context(label(name))
                    watch = shown.enter_context(show_run(limits, asked))
                elif kind == "hide":
                    shown.close()
                else:
                    with suppress(KeyboardInterrupt):  # the process gets to its own safe point
                        getattr(watch, kind)(*content)

    def _receive(self, task: Any) -> tuple[Any, ...]:
        try:
            while True:
                if ENDING.is_set():
                    self.process.terminate()
                if self._pipe.poll(GLANCE):
                    return self._pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            if ENDING.is_set():
                raise KeyboardInterrupt from None
            how = _describe_exit(self.process.exitcode)
            what = f"the process that ran {task} was ended {how}, perhaps for want of memory"
            advice = "the same command, which resumes, or fewer workers in another folder"
            raise InputError("workers", what, advice) from None


def _describe_exit(code: int | None) -> str:
    return f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with {code}"


def _warn(text: str, category: type[Warning], file: str, line: int) -> None:
    """Warn as the module in that file would: once, whoever else came across the same."""
    modules = (m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == file)
    known = vars(next(modules, sys.modules[__name__])).setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, category, file, line, registry=known)


# --- in the process ------------------------------------------------------------------------------


def serve(
    pipe: connection.Connection,
    environment: Mapping[str, str],
    begin: Begin,
    arguments: tuple[Any, ...],
) -> None:
    """Do tasks until the process is to end, the first exception included."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, should it not be blocked
    os.environ.clear()
    os.environ.update(environment)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: ENDING.set())
    send = lambda *message: pipe.send(message)
    prepare_process()
    BOARD.relay = partial(_relay, send)
    warnings.showwarning = lambda text, category, file, line, *_: send(
        "warning", str(text), category, file, line
    )
    try:
        do = begin(*arguments)
        while not ENDING.is_set():
            if pipe.poll(GLANCE):
                send("result", do(pipe.recv()))
    except BaseException as error:
        send("error", make_portable(error))


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


@contextmanager
def _relay(send: Callable[..., None], view: Any, asked: bool | None) -> Iterator[Watch]:
    """Have the parent show a run."""
    send("show", view.name, view.limits, asked)
    try:
        yield Relayed(view, send)
    finally:
        send("hide")


class Relayed(Watch):
    """What a run reports its iterations to, where the parent shows it."""

    def __init__(self, view: Any, send: Callable[..., None]):
        super().__init__(view)
        self._send = send

    def resume(self, iteration: int) -> None:
        self._send("resume", iteration)

    def end(self, result: str) -> None:
        self._send("end", result)

    def update(self, iteration: int, loss: float, row: Mapping[str, Any]) -> None:
        super().update(iteration, loss, row)
        self._send("update", iteration, float(loss), dict(row))


def make_portable(error: Failure) -> Failure | RuntimeError:
    """The exception as it can be sent: with a note of where it was raised, without its run."""
    vars(error).pop("natgrad_result", None)
    where, sent = "".join(traceback.format_exception(error)), error
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        sent = RuntimeError(f"{type(error).__name__}: {error}")
    sent.add_note(f"in a process of its own:\n{where}")
    return sent
