"""The deterministic archive of a project: what enters, its manifest, its digests."""

from experiment.bundle.build import Bundle, build_bundle, verify_payload

__all__ = ["Bundle", "build_bundle", "verify_payload"]
