"""Who rents machines. One module a provider; `registry.get_provider` finds it by name."""
