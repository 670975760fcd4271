"""`limits.yaml` in CHARTER_HOME: caps for everyone that no contract exceeds.

currency: CNY
max_per_job: 200      # money that one job may ever spend
max_per_day: 500      # money that all jobs together may spend in a UTC day
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path

import yaml

from experiment.errors import CharterError, GuardRefused

_KEYS = {"currency", "max_per_job", "max_per_day"}


@dataclass(frozen=True)
class Limits:
    """None means no limit."""

    currency: str | None = None
    max_per_job: Decimal | None = None
    max_per_day: Decimal | None = None

    def check(
        self, *, job: str, currency: str, asked: Decimal, job_spent: Decimal, day_spent: Decimal
    ) -> None:
        """
        Args:
            asked: what the run may still spend at worst.
            job_spent: already spent by the job, all runs.
            day_spent: already spent or reserved today by all jobs.

        Raises:
            GuardRefused: a limit would be exceeded, or the currencies differ.
        """
        if self.max_per_job is None and self.max_per_day is None:
            return
        if self.currency is not None and self.currency != currency:
            raise GuardRefused(
                "limit refused",
                f"job {job}",
                expected=f"currency {self.currency} as in limits.yaml",
                found=currency,
            )
        for name, limit, spent in (
            ("max_per_job", self.max_per_job, job_spent),
            ("max_per_day", self.max_per_day, day_spent),
        ):
            if limit is not None and spent + asked > limit:
                raise GuardRefused(
                    "limit refused",
                    f"job {job}",
                    expected=f"at most {limit} {currency} by {name} of limits.yaml",
                    found=f"{spent} spent or reserved and {asked} asked for",
                    hint="lower billing.max_total, or have limits.yaml changed",
                )


def load_limits(path: Path) -> Limits:
    """
    Raises:
        CharterError: the file is not of the form above.
    """
    if not path.exists():
        return Limits()
    try:
        body = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CharterError(
            "limits refused", str(path), expected="YAML", found=" ".join(str(error).split())[:200]
        ) from error
    if not isinstance(body, dict) or not set(body) <= _KEYS:
        raise CharterError("limits refused", str(path), expected="keys " + ", ".join(sorted(_KEYS)))
    return Limits(
        currency=body.get("currency"),
        max_per_job=_amount(path, body, "max_per_job"),
        max_per_day=_amount(path, body, "max_per_day"),
    )


def _amount(path: Path, body: dict[str, object], key: str) -> Decimal | None:
    value = body.get(key)
    if value is None:
        return None
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        amount = Decimal("NaN")
    if isinstance(value, bool) or not amount.is_finite() or amount < 0:
        raise CharterError(
            "limits refused", f"{path}: {key}", expected="an amount of 0 or more", found=repr(value)
        )
    return amount
