"""A model of Kafka, Flink and Kafka Streams with faults that knows the truth, and what Backflow's sources see of it.

It is written from how these systems behave, not from Backflow's rules. `python -m testbed.model SEED` draws the
scenario of a seed, runs Backflow on what the sources see and shows the truth beside the incidents; `make backtest` runs
many. The same seed gives the same scenario.

Layers: clock; kafka (brokers, logs) and groups (readers); flink and streams; truth (what happened); life (what is
ordinary) and faults (what is not), which act on the model; views (what sources see); scenario (draws one); score and
backtest (compare the incidents with the truth).
"""
