"""The contract as one frozen value. Attribute names are the YAML keys of the interface page.

    Contract
    ├── project   what is sent and what is started
    ├── inputs    models and datasets, each pinned
    ├── host      who rents, and what the machine must have
    ├── run       artifacts, verifier, environment, collection
    ├── billing   the bounds on money and time
    ├── secrets   names only
    └── store     where results go

Shapes here; rules that span keys, and rules that look at the disk, are in `checks.py`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
)

from experiment.contract.faults import refuse, shape_faults
from experiment.contract.fields import (
    CudaVersion,
    Duration,
    EnvValue,
    Flag,
    Gibibytes,
    GpuCount,
    Hours,
    HubId,
    Inside,
    Job,
    Line,
    Mebibytes,
    Money,
    Name,
    Store,
    Text,
    Variable,
    wanted,
)
from experiment.errors import CharterError
from remote.agent.files import canonical_json
from remote.agent.snapshot import reproducible

SCHEMA = 1


def _schema(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value != SCHEMA:
        newer = isinstance(value, int) and not isinstance(value, bool) and value > SCHEMA
        raise wanted(f"{SCHEMA}", "this contract needs a newer Charter" if newer else "")
    return value


def _directory(value: object, info: ValidationInfo) -> Path:
    """Absolute; a relative one is relative to the folder of the contract's file."""
    if isinstance(value, Path):
        value = str(value)
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise wanted("a folder")
    base = (info.context or {}).get("base", ".")
    return Path(os.path.abspath(os.path.join(base, os.path.expanduser(value))))


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_alias=True)


class Adapters(Section):
    """LoRA adapters that may travel in the payload: gitignore patterns and a cap on each file."""

    allow: tuple[Line, ...] = ()
    max_mib: Mebibytes = 512


class Project(Section):
    directory: Annotated[Path, BeforeValidator(_directory)] = Field(
        default=Path("."), validate_default=True
    )
    entry_command: Text | None = None
    trainer: Name | None = None
    config: Inside | None = None
    requirements: Inside | None = "requirements.txt"
    include: tuple[Line, ...] = ()
    exclude: tuple[Line, ...] = ()
    adapters: Adapters = Adapters()


class Input(Section):
    """A model or dataset. `path`: for source folder the folder here, relative to the contract's
    file; for a hub the folder on the host, relative to its data root (null: chosen)."""

    name: Name
    kind: Literal["model", "dataset"] = "model"
    source: Literal["modelscope", "huggingface", "folder"]
    id: HubId | None = None
    revision: Line | None = None
    path: Line | None = None
    quantization: Line | None = None

    @property
    def pinned(self) -> bool:
        """Whether the revision can't move (requirement 11): the host's rule, said before."""
        return reproducible(self.revision)


class Gpu(Section):
    """One choice of card; choices are tried in order, each under its own price cap."""

    name: Line = "any"
    count: GpuCount = 1
    max_price_per_hour: Money | None = None


class Environment(Section):
    kind: Literal["venv", "conda", "none"] = "venv"
    name: Name | None = None


class Host(Section):
    provider: Literal["local", "attach", "autodl"] = "local"
    gpus: Annotated[tuple[Gpu, ...], Field(min_length=1)] = (Gpu(),)
    min_vram_gib: Gibibytes = 0
    min_free_gib: Gibibytes = 2
    image: Line | None = None
    region: Line | None = None
    cuda_min: CudaVersion | None = None
    data_root: Line | None = None
    environment: Environment = Environment()
    reuse: Line | None = None


class Collect(Section):
    include: tuple[Line, ...] = ()
    exclude: tuple[Line, ...] = ()


class Run(Section):
    artifacts: Annotated[tuple[Line, ...], Field(min_length=1)]
    verifier: Text | None = None
    resume: Flag = True
    env: Mapping[Variable, EnvValue] = {}
    collect: Collect = Collect()
    on_stall: Literal["alert", "stop"] = "alert"
    test_command: Text | None = None


class Billing(Section):
    """The bounds on money and time. Durations are seconds."""

    approval: Literal["ask", "preauthorised", "signed"] = "ask"
    max_price_per_hour: Money | None = None
    max_total: Money
    max_hours: Hours
    currency: Literal["CNY", "USD", "EUR"] = "CNY"
    shutdown: Literal["keep", "stop", "release"] = "stop"
    idle_grace: Duration = 900
    collect_grace: Duration = 1800
    hold_on_failure: Duration = 1200


class Contract(Section):
    """One experiment, resolved: every key has its value."""

    schema_: Annotated[int, BeforeValidator(_schema)] = Field(alias="schema")
    job: Job
    project: Project
    inputs: tuple[Input, ...] = ()
    host: Host = Host()
    run: Run
    billing: Billing
    secrets: tuple[Variable, ...] = ()
    store: Store | None = None

    _base: Path = PrivateAttr(default=Path("/"))

    def model_post_init(self, context: Any, /) -> None:
        self._base = Path((context or {}).get("base", "/"))

    @classmethod
    def from_canonical(cls, data: Mapping[str, object], base: Path) -> Contract:
        """Reads back what a run recorded. Looks at no file.

        Args:
            data: what `canonical()` gave.
            base: the folder that relative paths are relative to.

        Raises:
            ContractInvalid: wrong shape, one line per fault.
        """
        faults, contract = validate(data, base)
        if contract is None or faults:
            raise refuse(faults, str(base))
        return contract

    @property
    def base(self) -> Path:
        """The folder of the contract's file."""
        return self._base

    @property
    def model(self) -> Input | None:
        """The input behind MODEL_PATH: the first model."""
        return next((item for item in self.inputs if item.kind == "model"), None)

    @property
    def bitwise_reproducible(self) -> bool:
        """False as soon as one input is not pinned."""
        return all(item.pinned for item in self.inputs)

    def rate_cap(self, gpu: Gpu) -> Decimal:
        """The most that an hour of this choice may cost, for all its cards together."""
        bounds = (gpu.max_price_per_hour, self.billing.max_price_per_hour)
        return min(bound for bound in bounds if bound is not None)

    def canonical(self) -> dict[str, Any]:
        """Plain JSON values, every key present; money and durations as strings; the project's
        folder relative to the contract's, so that two clones give one digest."""
        data: dict[str, Any] = self.model_dump(mode="json", by_alias=True)
        data["project"]["directory"] = Path(
            os.path.relpath(self.project.directory, self._base)
        ).as_posix()
        return data

    @property
    def sha256(self) -> str:
        """Of the canonical form, in hex."""
        return hashlib.sha256(canonical_json(self.canonical())).hexdigest()


def validate(data: object, base: Path) -> tuple[list[CharterError], Contract | None]:
    """Shape only: the faults of `data`, or the contract when there are none."""
    base = Path(os.path.abspath(base))
    try:
        return [], Contract.model_validate(data, context={"base": str(base)})
    except ValidationError as error:
        return list(shape_faults(error, Contract)), None
