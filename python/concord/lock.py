"""Locks with fencing tokens, of a chain of switches, through a gateway (docs/guides/coordination.md, Python).

    import concord

    with concord.Lock("@nightly", ttl=10, wait=30, address="127.0.0.1:7379") as lock:
        write(..., token=lock.token)

The lock is a key of the chain: its name begins as ``coord_prefix`` in the rack file says. ``concord coord lock @nightly``
takes the same one. Whatever is written to while the lock is held should refuse a token that is lower than one it has seen.
"""

import os
import socket
import threading
import time

__all__ = ["Lock", "LockError", "LockLost", "LockNotAcquired", "LockUnknown"]

#: Shortest and longest lease, in seconds.
_TTL_MIN_S = 0.1
_TTL_MAX_S = 86_400
#: The holder renews after this part of a lease, and the key lives this part longer than that: clocks that run at
#: different speeds.
_RENEWALS = 4
_DRIFT = 50
#: Time from one look at another's lock to the next, in seconds, and how much longer it may be.
_LOOK_S = 0.025
_LOOK_MORE_S = 0.025
#: Shortest time that an answer is waited for, in seconds.
_PATIENCE_MIN_S = 0.02
#: How long values of chains can be, in bytes.
_VALUE_BYTES = (64, 32, 16)
#: Longest line of a reply, in bytes.
_LINE_BYTES_MAX = 64 << 10
_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


class LockError(Exception):
    """What a gateway refuses: the line says why."""


class LockNotAcquired(LockError):
    """Another held it for as long as this waited; ``holder`` is the value of its key."""

    def __init__(self, name, holder):
        super().__init__(f"the lock {name} is held by {holder}")
        self.holder = holder


class LockLost(LockError):
    """It is not held any more: it could not be renewed in time, or somebody deleted its key."""


class LockUnknown(LockError):
    """Nobody answered in time. The lock may be taken all the same, or be taken yet; then it ends by itself."""


class _NoAnswer(Exception):
    """Nobody knows whether it was done."""


def _now():
    """Seconds that go on while the host sleeps, where the system has such a clock."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


def _addresses(address):
    address = address or os.environ.get("CONCORD_GATEWAY")
    if not address:
        raise ValueError("say the address of a gateway, or set CONCORD_GATEWAY")
    all_of_them = address.split(",") if isinstance(address, str) else list(address)
    places = []
    for one in all_of_them:
        host, _, port = one.strip().rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"{one!r} is no address of a gateway: HOST:PORT")
        places.append((host.strip("[]"), int(port)))
    return places


class _Gateways:
    """A connection to one of the gateways, in Redis' protocol, one command at a time."""

    def __init__(self, places, login):
        self._places = places
        self._login = login
        self._at = 0
        self._connection = None
        self._file = None

    def close(self):
        if self._connection is not None:
            self._file.close()
            self._connection.close()
            self._connection = None

    def call(self, words, patience_s):
        """The reply. ``_NoAnswer`` if it may have been done, ``ConnectionError`` if it was not sent."""
        until = _now() + patience_s
        if self._connection is None:
            self._connect(until)
        try:
            return self._exchange(words, until)
        except (OSError, EOFError) as error:
            self.close()
            self._at += 1
            raise _NoAnswer(str(error)) from error
        except BaseException:
            # A reply that is read in part, or not at all, is none of the next command.
            self.close()
            raise

    def _exchange(self, words, until):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        parts = [b"*%d\r\n" % len(words)]
        parts.extend(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
        self._connection.settimeout(max(_PATIENCE_MIN_S, until - _now()))
        self._connection.sendall(b"".join(parts))
        return self._reply()

    def _connect(self, until):
        host, port = place = self._places[self._at % len(self._places)]
        try:
            patience_s = max(_PATIENCE_MIN_S, until - _now())
            self._connection = socket.create_connection(place, patience_s)
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._file = self._connection.makefile("rb")
            said = self._exchange(self._login, until) if self._login else b"OK"
        except (OSError, EOFError) as error:
            self.close()
            self._at += 1
            raise ConnectionError(f"the gateway at {host}:{port} cannot be reached: {error}") from error
        except BaseException:
            self.close()
            raise
        if isinstance(said, LockError):
            self.close()
            raise said

    def _line(self):
        line = self._file.readline(_LINE_BYTES_MAX)
        if not line.endswith(b"\r\n"):
            raise EOFError("the connection ended")
        return line[:-2]

    def _reply(self):
        """A reply of RESP2: bytes, a number, ``None``, a list, or a ``LockError`` that is not raised."""
        line = self._line()
        sort, rest = line[:1], line[1:]
        try:
            if sort == b"+":
                return rest
            if sort == b"-":
                return LockError(rest.decode("utf-8", "replace"))
            if sort == b":":
                return int(rest)
            if sort == b"*":
                count = int(rest)
                return None if count < 0 else [self._reply() for _ in range(count)]
            if sort == b"$":
                count = int(rest)
                if count < 0:
                    return None
                text = self._file.read(count + 2)
                if len(text) != count + 2:
                    raise EOFError("the connection ended")
                return text[:-2]
        except ValueError:
            pass
        raise EOFError("what answers speaks no Redis protocol")


class Lock:
    """A lock that one process holds at a time, with a lease that is renewed in the background.

    ``name``: the key, with the rack's ``coord_prefix`` at its beginning; 32 bytes at most. ``ttl``: the lease, in seconds, 0.1
    to 86,400. ``wait``: how long ``acquire`` waits for another's lock, in seconds; ``None`` is without end. ``address``: gateways, as
    HOST:PORT, one or several (a list, or with commas between them), ``CONCORD_GATEWAY`` if it is not said. ``timeout``: how long one
    answer is waited for, in seconds. ``user`` and ``password`` are those of AUTH.

    While it is held a thread renews it four times in a lease. A holder that ends, or cannot reach the chain, loses it one
    lease after the last renewal that was answered, counted from before it was asked for; ``is_held`` says so by itself, and
    ``release``, or the end of ``with``, raises ``LockLost``. Nobody stops what goes on meanwhile: ask ``is_held`` now and then, and give ``token`` to
    whatever is written to. A process that was stopped for longer than a lease sees that it has lost the lock when it asks; what it has sent
    before it asks only the token stops. It is renewed until ``release``, or the end of the process, also if nobody refers to
    the object any more. A process that is forked off holds nothing.
    """

    def __init__(self, name, ttl=10, wait=0, *, address=None, user=None, password=None, timeout=10):
        if not _TTL_MIN_S <= ttl <= _TTL_MAX_S:
            raise ValueError(f"ttl: a lease has {_TTL_MIN_S} to {_TTL_MAX_S:,} seconds")
        if wait is not None and not wait >= 0 or not timeout > 0:
            raise ValueError("wait and timeout are seconds: wait from 0, timeout above it")
        if user is not None and password is None:
            raise ValueError("a user has a password")
        login = [] if password is None else ["AUTH", *([] if user is None else [user]), password]
        self.name = name
        self._ttl = ttl
        self._wait = wait
        self._timeout = timeout
        self._gateways = _Gateways(_addresses(address), login)
        #: Held by whoever uses the connection.
        self._uses = threading.Lock()
        self._renewer = None
        self._is_over = threading.Event()
        self._process = None
        #: While it is held: the token, the value of its key, and until when it is held at least.
        self._token = None
        self._value = None
        self._holds_until = None
        #: Why it is not held any more.
        self._lost = None

    @property
    def token(self):
        """The fencing token: later holders have higher ones. ``None`` before it is taken; it stays after that."""
        return self._token

    @property
    def value(self):
        """The value of the lock's key, which names this hold: lease in ms, a drawn number, host and process."""
        return None if self._value is None else self._value.decode("utf-8", "replace")

    @property
    def holds_until(self):
        """Until when it is held at least, by ``time.CLOCK_BOOTTIME`` (or ``time.monotonic``, where there is none)."""
        return self._holds_until

    def remaining(self):
        """For how many seconds it is held at least, if nobody deletes its key; 0 if it is not held."""
        until = self._holds_until
        if until is None or self._lost or self._process != os.getpid():
            return 0.0
        return max(0.0, until - _now())

    def is_held(self):
        """Whether it is held: what was answered last says so, and the lease is not over."""
        return self.remaining() > 0

    def acquire(self):
        """Takes it.

        ``LockNotAcquired``: another held it. ``LockUnknown``: nobody answered in time. ``ConnectionError``: no gateway can
        be reached. ``LockError``: what the gateway says, as of a key that is none of a chain.
        """
        if self._renewer is not None:
            raise RuntimeError("it is held by this object already; another Lock is another holder")
        host = socket.gethostname()
        text = f"{round(self._ttl * 1000)} {os.urandom(8).hex()} {host}:{os.getpid()}".encode()
        self._token, self._lost = None, None
        with self._uses:
            asked_at = self._take([text[:size] for size in _VALUE_BYTES])
        self._holds_until = asked_at + self._ttl
        self._process = os.getpid()
        self._is_over = threading.Event()
        renewer = threading.Thread(target=self._renew, args=(self._is_over,), name="concord-lock", daemon=True)
        renewer.start()
        self._renewer = renewer
        return self

    def release(self):
        """Gives it back, if it is still this holder's.

        ``LockLost``: it was not, perhaps for a while. If nobody answers it ends by itself, and nothing is raised.
        """
        if self._renewer is None or self._process != os.getpid():
            return
        self._renewer = None
        self._is_over.set()
        was_held = self.is_held()
        said = None
        try:
            with self._uses:
                said = self._gateways.call(["CAD", self.name, self._value], self._timeout)
        except (_NoAnswer, ConnectionError, LockError):
            pass
        finally:
            self._gateways.close()
            self._holds_until = None
        if self._lost is None and not was_held:
            self._lost = "its lease was over before it was renewed"
        if self._lost is None and isinstance(said, int) and said != 1:
            self._lost = "its key was deleted, or set by another"
        if self._lost is not None:
            raise LockLost(f"the lock {self.name} was lost: {self._lost}")

    def __enter__(self):
        return self.acquire()

    def __exit__(self, kind, error, trace):
        try:
            self.release()
        except LockLost:
            # What the block itself has raised is told.
            if kind is None:
                raise

    def _set(self, condition):
        """The words that set its key to its value, for a lease and a little more."""
        lease_ms = round(self._ttl * 1000 * (1 + 1 / _DRIFT)) + 1
        return ["SET", self.name, self._value, *condition, "PX", lease_ms]

    def _take(self, values):
        """Takes it as soon as nobody has it: when it asked for that."""
        until = None if self._wait is None else _now() + self._wait
        self._value = values.pop(0)
        # An answer was lost: the key may have this value.
        is_unsure = False
        while True:
            asked_at = _now()
            try:
                told = self._ask(is_unsure)
            except (_NoAnswer, ConnectionError) as error:
                is_unsure = is_unsure or isinstance(error, _NoAnswer)
                if until is not None and _now() >= until:
                    if not is_unsure:
                        raise
                    why = f"nobody answered in time ({error}): the lock {self.name} may be taken, and ends by itself then"
                    raise LockUnknown(why) from error
            else:
                if isinstance(told, int):
                    self._token = told
                    return asked_at
                if isinstance(told, LockError):
                    if not (values and str(told).startswith("ERR the value has ")):
                        raise told
                    self._value = values.pop(0)
                    continue
                if told is None:
                    # It is free again.
                    continue
                if until is not None and _now() >= until:
                    raise LockNotAcquired(self.name, told.decode("utf-8", "replace"))
            pause_s = _LOOK_S + os.urandom(1)[0] / 256 * _LOOK_MORE_S
            time.sleep(pause_s if until is None else max(0.0, min(pause_s, until - _now())))

    def _ask(self, is_unsure):
        """The token, if the key could be set; a gateway's error; or the value that it has, ``None`` if there is none."""
        holder = self._call(["GET", self.name])
        if isinstance(holder, LockError):
            return holder
        if holder is not None and not (is_unsure and holder == self._value):
            return holder
        condition = ["NX"] if holder is None else ["IFEQ", self._value]
        told = self._call(["CONCORD", "EXPLAIN", *self._set(condition)])
        if isinstance(told, LockError):
            if str(told).startswith("ERR CONCORD EXPLAIN is for"):
                return LockError(f"{self.name} is no key of a chain: what does coord_prefix in the rack file say?")
            return told
        fields = dict(zip(told[::2], told[1::2]))
        if isinstance(fields[b"reply"], LockError):
            return fields[b"reply"]
        # Another was faster.
        return fields[b"version"] if fields[b"reply"] == b"OK" else self._call(["GET", self.name])

    def _call(self, words, patience_s=None):
        """A reply; what the gateway itself does not know is ``_NoAnswer``."""
        said = self._gateways.call(words, self._timeout if patience_s is None else patience_s)
        if isinstance(said, LockError) and str(said).split(" ")[0] in ("UNKNOWN", "TIMEOUT"):
            raise _NoAnswer(str(said))
        return said

    def _renew(self, is_over):
        """Renews the lease until it is given back, or lost."""
        pause_s = self._ttl / _RENEWALS
        due = self._holds_until - self._ttl + pause_s
        while not is_over.wait(max(0.0, due - _now())):
            with self._uses:
                if is_over.is_set():
                    return
                asked_at = _now()
                if asked_at >= self._holds_until:
                    self._lost = "its lease was over before it was renewed"
                    return
                patience_s = min(pause_s, self._holds_until - asked_at)
                try:
                    told = self._call(self._set(["IFEQ", self._value]), min(patience_s, self._timeout))
                except (_NoAnswer, ConnectionError, LockError):
                    due = _now() + _LOOK_S
                    continue
            if told == b"OK":
                self._holds_until = asked_at + self._ttl
                due = asked_at + pause_s
            elif told is None:
                self._lost = "its key was deleted, or set by another"
                return
            else:
                # The gateway refuses it now, as while it is short of memory.
                due = _now() + _LOOK_S
