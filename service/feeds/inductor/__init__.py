"""Inductor's GEMM lookup table: what a key says, the table's file, the kernel by which tiles are ranked, the choices
that a job imports, and export and verification with torch's own reader."""
