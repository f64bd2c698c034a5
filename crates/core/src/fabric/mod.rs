//! What the endpoints of all fabrics do alike, in real and in virtual time: connection numbers, the
//! work requests under way, and the client's end of a fabric that its own rack's daemon serves.

pub mod peers;
pub mod proxied;
pub mod work_queue;
