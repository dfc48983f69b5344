//! Memory that peers can reach: buffers, protection domains, regions, keys and 2 MB translation.
