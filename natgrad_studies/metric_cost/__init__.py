"""The metric cost study: table 2 and figure 1 of the paper (section 3.4), for all our metrics."""
