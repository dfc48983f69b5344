//! The verbs libraries: unmodified RDMA programs on Remora.
