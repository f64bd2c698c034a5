//! What Python hands over as memory: anything with a contiguous buffer.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Memory of an object, which stays where it is while this is there.
pub struct Memory {
    buffer: PyUntypedBuffer,
}

impl Memory {
    /// Memory that is to be read.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Memory> {
        let buffer = PyUntypedBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the buffer is not contiguous"));
        }
        Ok(Memory { buffer })
    }

    /// Memory that is to be written.
    pub fn writable(object: &Bound<'_, PyAny>) -> PyResult<Memory> {
        let memory = Memory::of(object)?;
        if memory.buffer.readonly() {
            return Err(PyBufferError::new_err("the buffer is read-only"));
        }
        Ok(memory)
    }

    pub fn bytes(&self) -> &[u8] {
        if self.buffer.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: the object exports this memory until `buffer` is dropped. That no other thread
        // writes to it meanwhile is the program's affair, as with every buffer in Python; its bytes
        // are copied, and nothing depends on what they are.
        unsafe { std::slice::from_raw_parts(self.buffer.buf_ptr().cast(), self.buffer.len_bytes()) }
    }

    /// Of one that was made by `writable`.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(!self.buffer.readonly(), "a buffer to be read is not written");
        if self.buffer.len_bytes() == 0 {
            return &mut [];
        }
        // SAFETY: as in `bytes`; the object lets its memory be written.
        unsafe {
            std::slice::from_raw_parts_mut(self.buffer.buf_ptr().cast(), self.buffer.len_bytes())
        }
    }
}

/// Addresses in an array of 64-bit words, or in a list.
pub fn addresses(object: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    let Ok(memory) = Memory::of(object) else { return object.extract() };
    if memory.buffer.item_size() != 8 {
        return Err(PyBufferError::new_err("an array of addresses has items of 8 bytes"));
    }
    let words = memory.bytes().chunks_exact(8);
    Ok(words.map(|word| u64::from_ne_bytes(word.try_into().expect("chunks of 8"))).collect())
}

/// A new bytes object that is filled detached from the interpreter.
pub fn filled<'py>(
    py: Python<'py>,
    bytes: usize,
    fill: impl FnOnce(&mut [u8]) -> PyResult<()>,
) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, bytes, fill)
}
