"""One product a group, all in one launch, on Hopper (a mixture of experts' feed-forward, forward and backward): its
configurations, how rows may be distributed over groups, and what a shape with its distribution asks of the device."""

EXPORTS = {"space": ("config_of",), "work": ("busiest_trips",)}
