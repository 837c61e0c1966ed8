"""What a kernel at the cut does, read off its text: loops as work and flows, where values come from and lie, which
rows they follow, what loads must not run ahead of, how tiles split by rows. Reads, decides nothing, changes nothing.
"""
