//! Parameters and replies of kernels as Rust values: little-endian and packed, one after the other.

/// What a kernel can be given as parameters.
///
/// Numbers are little-endian; tuples, arrays and slices are their parts without gaps.
///
/// ```
/// use remora::ToParams;
///
/// let mut params = Vec::new();
/// (7u32, [1u16, 2], b"end").put(&mut params);
/// assert_eq!(params, [7, 0, 0, 0, 1, 0, 2, 0, b'e', b'n', b'd']);
/// ```
pub trait ToParams {
    /// Appends the value.
    fn put(&self, params: &mut Vec<u8>);
}

/// What a kernel's reply can be read as.
///
/// Numbers are little-endian; tuples and arrays are their parts without gaps; a vector is all that is left. `Option`
/// stands for kernels that may find nothing: it is `None` where the kernel ends with
/// [`NotFound`](crate::Status::NotFound), which is an error otherwise.
///
/// ```
/// use remora::FromReply;
///
/// assert_eq!(<(u16, Vec<u8>)>::from_reply(&[1, 0, 2, 3]), Some((1, vec![2, 3])));
/// assert_eq!(u64::from_reply(&[1, 0]), None);
/// ```
pub trait FromReply: Sized {
    /// Takes the value off the front.
    fn take(reply: &mut &[u8]) -> Option<Self>;

    /// The value that says that nothing was found.
    fn not_found() -> Option<Self> {
        None
    }

    /// The value of a whole reply.
    fn from_reply(mut reply: &[u8]) -> Option<Self> {
        Self::take(&mut reply).filter(|_| reply.is_empty())
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl ToParams for $number {
            fn put(&self, params: &mut Vec<u8>) {
                params.extend(self.to_le_bytes());
            }
        }

        impl FromReply for $number {
            fn take(reply: &mut &[u8]) -> Option<Self> {
                let (bytes, rest) = reply.split_first_chunk()?;
                *reply = rest;
                Some(Self::from_le_bytes(*bytes))
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, f32, f64);

macro_rules! tuples {
    ($($part:ident)*) => {
        #[allow(non_snake_case, reason = "the parts are named as their types")]
        impl<$($part: ToParams),*> ToParams for ($($part,)*) {
            fn put(&self, _params: &mut Vec<u8>) {
                let ($($part,)*) = self;
                $($part.put(_params);)*
            }
        }

        impl<$($part: FromReply),*> FromReply for ($($part,)*) {
            fn take(_reply: &mut &[u8]) -> Option<Self> {
                Some(($($part::take(_reply)?,)*))
            }
        }
    };
}

tuples!();
tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
tuples!(A B C D E F G);
tuples!(A B C D E F G H);

impl<T: ToParams> ToParams for [T] {
    fn put(&self, params: &mut Vec<u8>) {
        self.iter().for_each(|part| part.put(params));
    }
}

impl<T: ToParams, const N: usize> ToParams for [T; N] {
    fn put(&self, params: &mut Vec<u8>) {
        self.as_slice().put(params);
    }
}

impl<T: ToParams> ToParams for Vec<T> {
    fn put(&self, params: &mut Vec<u8>) {
        self.as_slice().put(params);
    }
}

impl<T: ToParams + ?Sized> ToParams for &T {
    fn put(&self, params: &mut Vec<u8>) {
        (**self).put(params);
    }
}

impl<T: FromReply, const N: usize> FromReply for [T; N] {
    fn take(reply: &mut &[u8]) -> Option<Self> {
        let parts: Option<Vec<T>> = (0..N).map(|_| T::take(reply)).collect();
        parts?.try_into().ok()
    }
}

impl<T: FromReply> FromReply for Vec<T> {
    fn take(reply: &mut &[u8]) -> Option<Self> {
        let mut parts = Vec::new();
        while !reply.is_empty() {
            let before = reply.len();
            parts.push(T::take(reply)?);
            // Parts without bytes would never end.
            (reply.len() < before).then_some(())?;
        }
        Some(parts)
    }
}

impl<T: FromReply> FromReply for Option<T> {
    fn take(reply: &mut &[u8]) -> Option<Self> {
        T::take(reply).map(Some)
    }

    fn not_found() -> Option<Self> {
        Some(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_is_taken() {
        let value = (1u8, -2i64, [3u16, 4], (5.5f64, vec![6u32, 7]));
        let mut bytes = Vec::new();
        value.put(&mut bytes);
        assert_eq!(bytes.len(), 1 + 8 + 4 + 8 + 8);
        assert_eq!(<(u8, i64, [u16; 2], (f64, Vec<u32>))>::from_reply(&bytes), Some(value));
    }

    #[test]
    fn replies_of_another_length_are_none() {
        assert_eq!(u32::from_reply(&[0; 5]), None);
        assert_eq!(<[u32; 2]>::from_reply(&[0; 7]), None);
        assert_eq!(<Vec<u32>>::from_reply(&[0; 7]), None);
        assert_eq!(<Vec<()>>::from_reply(&[0]), None);
        assert_eq!(<()>::from_reply(&[]), Some(()));
        assert_eq!((u32::not_found(), <Option<u32>>::not_found()), (None, Some(None)));
        assert_eq!(<Option<u32>>::from_reply(&[1, 0, 0, 0]), Some(Some(1)));
    }
}
