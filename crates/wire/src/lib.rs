//! RoCE v2 on the wire: headers to and from bytes, with no state.
