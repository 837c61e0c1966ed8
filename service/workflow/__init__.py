"""The use cases that HTTP and the command line share: what is asked, how it is answered and planned, files."""
