"""Smart remote memory: one-sided access, kernels next to the data, a replicated store, and where it should run."""

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, final, overload

from typing_extensions import Buffer, CapsuleType, Self

from ._errors import CallTimedOut as CallTimedOut
from ._errors import ConnectionFailed as ConnectionFailed
from ._errors import InvalidArgument as InvalidArgument
from ._errors import KernelFailed as KernelFailed
from ._errors import OutcomeUnknown as OutcomeUnknown
from ._errors import RemoraError as RemoraError
from ._errors import StoreRefused as StoreRefused

__all__ = [
    "ArrowTable",
    "AsyncClient",
    "CallTimedOut",
    "CheckedObject",
    "Client",
    "Comparison",
    "ConnectionFailed",
    "InvalidArgument",
    "Kernel",
    "KernelFailed",
    "List",
    "LocalCluster",
    "Node",
    "OutcomeUnknown",
    "Pending",
    "Region",
    "RemoraError",
    "Reproduction",
    "Store",
    "StoreRefused",
    "Table",
    "__version__",
    "compare",
    "platforms",
    "reproduce",
    "where",
]

__version__: str

_Text = str | bytes
_Place = Literal["client", "nic", "host"]
_Link = Literal["shm", "udp", "packet"]
_Records = Mapping[_Text, _Text] | Iterable[tuple[_Text, _Text]]

@final
class Node:
    """A memory node in this process, until it is closed or forgotten. `memory` is how many bytes clients may allocate, all
    together."""

    def __new__(cls, listen: str | None = None, *, memory: int | None = None) -> Self: ...
    @property
    def address(self) -> str: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, _kind: Any, _error: Any, _trace: Any) -> None: ...

@final
class Client:
    """A connection to a memory node. Threads may share it: they take turns. A call takes at most `timeout` seconds, or else as
    long as the connection stands; `token` is the file of what the node asks of who deploys kernels."""

    def __new__(
        cls, node: str, *, link: _Link | None = None, timeout: float | None = None, token: str | None = None
    ) -> Self: ...
    @property
    def link(self) -> str: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, _kind: Any, _error: Any, _trace: Any) -> None: ...
    def alloc(self, len: int) -> Region:
        """Zeroed memory on the node."""
    def load_table(self, records: _Records) -> Table:
        """Loads a hash table into memory of the node."""
    def load_list(self, records: Mapping[int, _Text] | Iterable[tuple[int, _Text]]) -> List:
        """Loads a linked list into memory of the node."""
    def load_object(self, payload: Buffer) -> CheckedObject:
        """Loads an object that may be read while it is rewritten."""
    def rewrite(self, object: CheckedObject, payload: Buffer) -> None:
        """Rewrites an object in place, with a payload of the same length."""
    def get(self, table: Table, key: _Text, place: _Place = "nic") -> bytes | None:
        """The value of a key in a hash table; None if it has no such key."""
    def get_many(self, table: Table, keys: Sequence[_Text], place: _Place = "nic") -> list[bytes | None]:
        """The values of many keys, whose calls are under way together."""
    def submit_get(self, table: Table, key: _Text, place: _Place = "nic") -> Pending:
        """Starts a look-up; its result is had later."""
    def traverse(self, list: List, key: int, place: _Place = "nic") -> bytes | None:
        """The value of a key in a linked list; None if it has no such key."""
    def read_consistent(self, object: CheckedObject, place: _Place = "nic") -> bytes:
        """An object as one of its writers wrote it, never a part of two."""
    def deploy(self, name: str, module: _Text, *, fuel: int | None = None) -> Kernel:
        """Deploys a WebAssembly module, binary or text, at the node and at this client."""
    def kernel(self, name: str) -> Kernel:
        """A kernel that somebody has deployed at the node."""
    def kernels(self) -> dict[str, int]:
        """The kernels that are deployed at the node, by name, with their op-codes."""
    def remove_kernel(self, name: str) -> None: ...

@final
class Region:
    """Memory of a node: read and written like a bytearray, each time over the network. It stays until it is freed or its client
    is closed, whether anybody holds this or not, as others may know its key."""

    @property
    def key(self) -> int: ...
    @property
    def va(self) -> int: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, at: int, /) -> int: ...
    @overload
    def __getitem__(self, at: slice, /) -> bytes: ...
    @overload
    def __setitem__(self, at: int, data: int, /) -> None: ...
    @overload
    def __setitem__(self, at: slice, data: Buffer, /) -> None: ...
    def __bytes__(self) -> bytes: ...
    def read(self, offset: int = 0, len: int | None = None) -> bytes: ...
    def readinto(self, buffer: Buffer, offset: int = 0) -> int: ...
    def write(self, data: Buffer, offset: int = 0) -> None: ...
    def fetch_add(self, offset: int, add: int) -> int:
        """Adds to the word of 8 bytes at a multiple of 8; what it was."""
    def compare_swap(self, offset: int, expected: int, new: int) -> int:
        """Sets the word of 8 bytes at a multiple of 8 if it is what is expected; what it was."""
    def free(self) -> None: ...

@final
class Table:
    """A hash table in a node's memory."""

    def __len__(self) -> int: ...

@final
class List:
    """A linked list in a node's memory."""

@final
class CheckedObject:
    """An object in a node's memory that carries its checksum."""

    def __len__(self) -> int: ...

@final
class Kernel:
    """A kernel that is deployed at a node."""

    @property
    def name(self) -> str: ...
    @property
    def op(self) -> int: ...
    def __call__(self, params: Buffer, place: _Place = "nic", *, payload: Buffer | None = None) -> bytes | None: ...
    def submit(self, params: Buffer, place: _Place = "nic", *, payload: Buffer | None = None) -> Pending: ...

@final
class Pending:
    """A call under way."""

    @property
    def place(self) -> str: ...
    def result(self) -> bytes | None:
        """Waits for its end; to be asked once."""

@final
class AsyncClient:
    """A connection to a memory node, whose calls are awaited. A thread of its own drives it. How long a call may take is for
    `asyncio.timeout` to say: one that is given up goes on at the node, and its reply is thrown away."""

    @staticmethod
    def connect(node: str, *, link: _Link | None = None, token: str | None = None) -> Awaitable[AsyncClient]: ...
    def close(self) -> None: ...
    def __aenter__(self) -> Awaitable[Self]: ...
    def __aexit__(self, _kind: Any, _error: Any, _trace: Any) -> Awaitable[None]: ...
    def alloc(self, len: int) -> Awaitable[Region]: ...
    def read(self, region: Region, offset: int = 0, len: int | None = None) -> Awaitable[bytes]: ...
    def write(self, region: Region, data: Buffer, offset: int = 0) -> Awaitable[None]: ...
    def fetch_add(self, region: Region, offset: int, add: int) -> Awaitable[int]:
        """Adds to the word of 8 bytes at a multiple of 8; what it was."""
    def compare_swap(self, region: Region, offset: int, expected: int, new: int) -> Awaitable[int]:
        """Sets the word of 8 bytes at a multiple of 8 if it is what is expected; what it was."""
    def free(self, region: Region) -> Awaitable[None]: ...
    def kernels(self) -> Awaitable[dict[str, int]]:
        """The kernels that are deployed at the node, by name, with their op-codes."""
    def load_table(self, records: _Records) -> Awaitable[Table]: ...
    def get(self, table: Table, key: _Text, place: _Place = "nic") -> Awaitable[bytes | None]: ...
    def call(
        self, op: int, params: Buffer, place: _Place = "nic", *, payload: Buffer | None = None
    ) -> Awaitable[bytes | None]:
        """Calls a kernel by its op-code, as `kernels` gives it."""

@final
class Store:
    """A connection to a replicated store: to one of its nodes, given in the order of their numbers, and to the next one when
    that fails. `secret` is the file `clients.secret` of the cluster's directory; an answer, and a connection, may take `timeout`
    seconds, by default 5. With `retry` a request whose outcome is unknown is sent again, and done once."""

    def __new__(
        cls,
        nodes: Sequence[str],
        *,
        secret: str | PathLike[str] | None = None,
        link: _Link | None = None,
        timeout: float | None = None,
        retry: bool = False,
    ) -> Self: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, _kind: Any, _error: Any, _trace: Any) -> None: ...
    def get(self, key: int) -> bytes | None: ...
    def put(self, key: int, value: _Text) -> None: ...
    def delete(self, key: int) -> None: ...
    def fetch_add(self, key: int, add: int) -> int: ...
    def compare_swap(self, key: int, expected: _Text | None, new: _Text | None) -> tuple[bool, bytes | None]:
        """Whether it swapped, and what the record is if not."""

@final
class LocalCluster:
    """All nodes of a replicated store as threads of this process."""

    def __new__(cls, directory: str | PathLike[str], nodes: int = 3, model: str = "synch") -> Self: ...
    @property
    def addresses(self) -> list[str]: ...
    def connect(self, *, retry: bool = False) -> Store: ...
    def stop(self, node: int) -> None: ...
    def restart(self, node: int) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, _kind: Any, _error: Any, _trace: Any) -> None: ...

@final
class ArrowTable:
    """A table that pyarrow, polars, pandas and others take without a copy (Arrow PyCapsule interface)."""

    @property
    def columns(self) -> list[str]: ...
    def __len__(self) -> int: ...
    def to_pydict(self) -> dict[str, list[Any]]: ...
    def __arrow_c_schema__(self) -> CapsuleType: ...
    def __arrow_c_stream__(self, requested_schema: Any | None = None) -> CapsuleType: ...

@final
class Comparison:
    """What a comparison found: str() is its table for people."""

    @property
    def rows(self) -> ArrowTable: ...
    @property
    def verdicts(self) -> ArrowTable: ...
    def to_json(self) -> str: ...

@final
class Reproduction:
    """A paper's figures from the model: str() is the table for people."""

    @property
    def figures(self) -> ArrowTable: ...
    @property
    def claims(self) -> ArrowTable: ...
    @property
    def trends(self) -> ArrowTable: ...
    def to_json(self) -> str: ...

def compare(
    *,
    records: int = 10_000,
    value_bytes: int = 64,
    seconds: float = 0.02,
    operations: Sequence[str] | None = None,
    links: Sequence[_Link] | None = None,
    seed: int = 42,
) -> Comparison:
    """Compares places over records of a node in this process, for so many seconds a figure."""

def where(
    operation: str | PathLike[str],
    on: Sequence[str],
    *,
    by: Literal["latency", "rate", "energy"] = "latency",
    link: _Link = "udp",
    points: int = 256,
    simulate: int = 20_000,
    seed: int = 42,
) -> ArrowTable:
    """Where an operation should run, by its name or its TOML file: a row for each platform and place, the best first."""

def reproduce(
    paper: Literal["strom", "minos", "bluefield", "rambda", "dfabric"],
    figure: str | None = None,
    *,
    jobs: int = 1,
    seed: int = 42,
    requests: int = 1000,
) -> Reproduction:
    """Runs a paper's experiments on the hardware that it describes."""

def platforms(names: Sequence[str] | None = None) -> ArrowTable:
    """The values of platforms, each with its range, status and source."""
