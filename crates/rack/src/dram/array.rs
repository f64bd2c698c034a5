//! Arrays longer than serde writes by itself, for checkpoints.

use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::{Serialize, Serializer};

pub(super) fn serialize<S: Serializer, T: Serialize, const N: usize>(
    array: &[T; N],
    to: S,
) -> Result<S::Ok, S::Error> {
    array.as_slice().serialize(to)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>, T: Deserialize<'de>, const N: usize>(
    from: D,
) -> Result<[T; N], D::Error> {
    let list = Vec::<T>::deserialize(from)?;
    list.try_into().map_err(|_| D::Error::custom("an array of another length"))
}
