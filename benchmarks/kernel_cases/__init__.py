"""What ``bench_kernels.py`` measures: a module a kernel with its operands, its launches and its peers, and in
``bench_rows`` the shapes of every table, training and held-out ones apart."""
