"""What speaks to Prefect's API from outside a flow: server, runners, gate, installation."""
