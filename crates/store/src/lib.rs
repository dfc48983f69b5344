//! Data structures laid out in remote memory: linked list, hash table, checked values.
