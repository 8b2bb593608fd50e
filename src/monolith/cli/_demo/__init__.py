"""The inside of ``monolith demo``: three click models race over the same generated traffic.

Read `race` first: traffic goes in, windows of measurements come out. `contestants` are the models, `view` shows a race
while it runs, `report` writes it down, with plots of `monolith.observe.charts`.
"""
