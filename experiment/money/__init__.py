"""Money as Decimal with a currency, the cost of paid time, and the deadline a cap buys."""
