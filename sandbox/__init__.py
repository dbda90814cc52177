"""The sandbox: simulated services with faults, and a ledger that knows the truth."""
