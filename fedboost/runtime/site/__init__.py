"""A party's process at its site: policy, approvals, memory, audit log, and connection to the aggregator."""
