"""The library: contract, money, hosts, evidence. It never imports Prefect nor the command line."""

__version__ = "0.1.0"
