"""Solves of elliptic equations on grids: what lies under the Sobolev and transport metrics."""
