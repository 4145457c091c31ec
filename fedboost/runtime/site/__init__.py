"""A party's process: policy, approval, memory, audit log, connection."""
