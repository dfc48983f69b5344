//! The storm world: seeded faults, histories and their checks, exhaustive checking of small cases.
