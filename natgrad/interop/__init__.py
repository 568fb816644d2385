"""Links to other libraries; each imports its own when it is used."""
