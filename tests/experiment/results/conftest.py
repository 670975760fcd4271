"""The S3 server of the store's tests."""

from tests.twins.s3_server import s3_server

__all__ = ["s3_server"]
