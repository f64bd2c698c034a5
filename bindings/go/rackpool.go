// Package rackpool is a memory pool for clusters: one address space over the memory of racks.
//
// A Pool is used by any number of goroutines. Each works through a Handle, which one goroutine uses
// at a time: a second one gets ErrMisuse, and nothing is harmed.
//
//	pool, err := rackpool.Open(rackpool.Options{Master: "127.0.0.1:7400"})
//	handle, err := pool.Handle()
//	addr, err := handle.Alloc(ctx, 4096, rackpool.Auto)
//	err = handle.Write(ctx, addr, []byte("hello"))
//
// The deadline of a context is how long a call waits. A context that is cancelled without one ends
// no call that has begun: those end at the pool's time limit.
package rackpool

// #cgo pkg-config: rackpool
// #include <rackpool.h>
// #include <stdlib.h>
import "C"

import (
	"context"
	"runtime"
	"time"
	"unsafe"
)

// Addr is an address in the pool, the same for every process; 0 is none.
type Addr uint64

// Placement says where memory is taken from.
type Placement uint32

// Places of memory.
const (
	Auto   Placement = C.RP_AUTO
	Local  Placement = C.RP_LOCAL
	Spread Placement = C.RP_SPREAD
	Near   Placement = C.RP_NEAR
	Far    Placement = C.RP_FAR
)

// Rack is the memory of that rack, or nowhere.
func Rack(number uint16) Placement {
	return Placement(C.RP_RACK_0) + Placement(number)
}

// Options say how a pool is joined.
type Options struct {
	Master     string        // HOST:PORT, several with commas; 127.0.0.1:7400 if empty
	Rack       uint16        // in which this program runs
	Timeout    time.Duration // how long calls wait; 10 s if 0
	Fabric     string        // auto, shm, tcp, verbs or proxied
	SecretFile string
	ReadOnly   bool
}

// Pool is a pool that was joined.
type Pool struct {
	pool *C.rp_pool
}

// Handle is one goroutine's way into a pool at a time.
type Handle struct {
	handle *C.rp_handle
	// Set at the library, in ms; 0 for what the pool's options say.
	timeout uint64
}

// checked runs a call on one thread with the question why it failed, which is the thread's.
func checked(call func() C.rp_status) error {
	runtime.LockOSThread()
	status := call()
	if status == C.RP_OK {
		runtime.UnlockOSThread()
		return nil
	}
	err := lastError(status)
	runtime.UnlockOSThread()
	return err
}

// text is a string for C, to be freed; nil if it is empty.
func text(of string) *C.char {
	if of == "" {
		return nil
	}
	return C.CString(of)
}

// memory is where a slice is: C keeps it no longer than its call takes.
func memory(of []byte) unsafe.Pointer {
	return unsafe.Pointer(unsafe.SliceData(of))
}

// Open joins a pool.
func Open(options Options) (*Pool, error) {
	given := C.rp_options{
		rack:       C.uint16_t(options.Rack),
		timeout_ms: C.uint64_t(options.Timeout.Milliseconds()),
	}
	given.size = C.size_t(unsafe.Sizeof(given))
	for at, value := range map[**C.char]string{
		&given.master:      options.Master,
		&given.fabric:      options.Fabric,
		&given.secret_file: options.SecretFile,
	} {
		*at = text(value)
		defer C.free(unsafe.Pointer(*at))
	}
	if options.ReadOnly {
		given.flags = C.RP_READ_ONLY
	}
	pool := &Pool{}
	err := checked(func() C.rp_status { return C.rp_open(&given, &pool.pool) })
	if err != nil {
		return nil, err
	}
	return pool, nil
}

// Close leaves the pool; its handles stay.
func (p *Pool) Close() error {
	return checked(func() C.rp_status { return C.rp_close(p.pool) })
}

// Handle opens a handle.
func (p *Pool) Handle() (*Handle, error) {
	h := &Handle{}
	err := checked(func() C.rp_status { return C.rp_handle_open(p.pool, &h.handle) })
	if err != nil {
		return nil, err
	}
	return h, nil
}

// Close ends a handle; its locks and what it owns are given back.
func (h *Handle) Close() error {
	return checked(func() C.rp_status { return C.rp_handle_close(h.handle) })
}

// within has calls wait until the context's deadline at most.
func (h *Handle) within(ctx context.Context, call func() C.rp_status) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var timeout uint64
	if deadline, ok := ctx.Deadline(); ok {
		// 0 would be what the options say.
		timeout = max(1, uint64(max(0, time.Until(deadline).Milliseconds())))
	}
	return checked(func() C.rp_status {
		if timeout != h.timeout {
			status := C.rp_set_timeout(h.handle, C.uint64_t(timeout))
			if status != C.RP_OK {
				return status
			}
			h.timeout = timeout
		}
		return call()
	})
}

// Alloc allocates zeroed bytes, which outlive the process.
func (h *Handle) Alloc(ctx context.Context, bytes uint64, place Placement) (Addr, error) {
	var addr C.rp_addr
	err := h.within(ctx, func() C.rp_status {
		return C.rp_alloc(h.handle, C.uint64_t(bytes), C.rp_placement(place), &addr)
	})
	return Addr(addr), err
}

// Free gives back what Alloc gave.
func (h *Handle) Free(ctx context.Context, addr Addr, bytes uint64) error {
	return h.within(ctx, func() C.rp_status {
		return C.rp_free(h.handle, C.rp_addr(addr), C.uint64_t(bytes))
	})
}

// Read fills a slice. After an error it holds anything.
func (h *Handle) Read(ctx context.Context, addr Addr, to []byte) error {
	return h.within(ctx, func() C.rp_status {
		return C.rp_read(h.handle, C.rp_addr(addr), memory(to), C.size_t(len(to)))
	})
}

// Write writes a slice; when it returns, every reader sees it.
func (h *Handle) Write(ctx context.Context, addr Addr, from []byte) error {
	return h.within(ctx, func() C.rp_status {
		return C.rp_write(h.handle, C.rp_addr(addr), memory(from), C.size_t(len(from)))
	})
}

// Piece is one of many that are read or written together.
type Piece struct {
	Addr Addr
	Data []byte
}

// ReadMany fills all pieces under one wait.
func (h *Handle) ReadMany(ctx context.Context, pieces []Piece) error {
	if len(pieces) == 0 {
		return ctx.Err()
	}
	// What is given to C names other memory, which must not move meanwhile.
	var pinner runtime.Pinner
	defer pinner.Unpin()
	given := make([]C.rp_piece, len(pieces))
	for i, piece := range pieces {
		given[i] = C.rp_piece{addr: C.rp_addr(piece.Addr), bytes: C.size_t(len(piece.Data))}
		if len(piece.Data) > 0 {
			pinner.Pin(unsafe.SliceData(piece.Data))
			given[i].data = memory(piece.Data)
		}
	}
	return h.within(ctx, func() C.rp_status {
		return C.rp_readv(h.handle, &given[0], C.size_t(len(given)))
	})
}

// WriteMany writes all pieces under one wait.
func (h *Handle) WriteMany(ctx context.Context, pieces []Piece) error {
	if len(pieces) == 0 {
		return ctx.Err()
	}
	var pinner runtime.Pinner
	defer pinner.Unpin()
	given := make([]C.rp_const_piece, len(pieces))
	for i, piece := range pieces {
		given[i] = C.rp_const_piece{addr: C.rp_addr(piece.Addr), bytes: C.size_t(len(piece.Data))}
		if len(piece.Data) > 0 {
			pinner.Pin(unsafe.SliceData(piece.Data))
			given[i].data = memory(piece.Data)
		}
	}
	return h.within(ctx, func() C.rp_status {
		return C.rp_writev(h.handle, &given[0], C.size_t(len(given)))
	})
}

// ReadUint64 reads an aligned word at once.
func (h *Handle) ReadUint64(ctx context.Context, addr Addr) (uint64, error) {
	var value C.uint64_t
	err := h.within(ctx, func() C.rp_status {
		return C.rp_read_u64(h.handle, C.rp_addr(addr), &value)
	})
	return uint64(value), err
}

// WriteUint64 writes an aligned word at once.
func (h *Handle) WriteUint64(ctx context.Context, addr Addr, value uint64) error {
	return h.within(ctx, func() C.rp_status {
		return C.rp_write_u64(h.handle, C.rp_addr(addr), C.uint64_t(value))
	})
}

// CompareAndSwap replaces a word if it is old; what was found, and whether it was replaced.
func (h *Handle) CompareAndSwap(
	ctx context.Context, addr Addr, old, replacement uint64,
) (found uint64, swapped bool, err error) {
	var was C.uint64_t
	err = h.within(ctx, func() C.rp_status {
		return C.rp_cas(h.handle, C.rp_addr(addr), C.uint64_t(old), C.uint64_t(replacement), &was)
	})
	return uint64(was), err == nil && uint64(was) == old, err
}

// Add adds to a word, wrapping; the value before.
func (h *Handle) Add(ctx context.Context, addr Addr, n uint64) (uint64, error) {
	var before C.uint64_t
	err := h.within(ctx, func() C.rp_status {
		return C.rp_fetch_add(h.handle, C.rp_addr(addr), C.uint64_t(n), &before)
	})
	return uint64(before), err
}

// Root is the address under a name; ErrNotFound without one.
func (h *Handle) Root(ctx context.Context, name string) (Addr, error) {
	var addr C.rp_addr
	given := C.CString(name)
	defer C.free(unsafe.Pointer(given))
	err := h.within(ctx, func() C.rp_status { return C.rp_root(h.handle, given, &addr) })
	return Addr(addr), err
}

// SetRoot sets the address under a name if it is expected now (0: if there is none); the address
// that is there afterwards.
func (h *Handle) SetRoot(ctx context.Context, name string, expected, addr Addr) (Addr, error) {
	var now C.rp_addr
	given := C.CString(name)
	defer C.free(unsafe.Pointer(given))
	err := h.within(ctx, func() C.rp_status {
		return C.rp_root_set(h.handle, given, C.rp_addr(expected), C.rp_addr(addr), &now)
	})
	return Addr(now), err
}

// Pin is memory of a mapped rack as it is. Others may write to it meanwhile.
type Pin struct {
	pin  *C.rp_pin
	data []byte
}

// Pin pins memory within one page, at a multiple of 8.
func (h *Handle) Pin(ctx context.Context, addr Addr, bytes uint64) (*Pin, error) {
	pin := &Pin{}
	var data unsafe.Pointer
	err := h.within(ctx, func() C.rp_status {
		return C.rp_pin_open(h.handle, C.rp_addr(addr), C.uint64_t(bytes), &pin.pin, &data)
	})
	if err != nil {
		return nil, err
	}
	pin.data = unsafe.Slice((*byte)(data), bytes)
	return pin, nil
}

// Bytes is the memory, until Unpin.
func (p *Pin) Bytes() []byte {
	return p.data
}

// Revoked says whether the page is wanted elsewhere, or was freed: unpin soon.
func (p *Pin) Revoked() (bool, error) {
	var revoked C.int
	err := checked(func() C.rp_status { return C.rp_pin_revoked(p.pin, &revoked) })
	return revoked != 0, err
}

// Unpin ends it; nothing may use its bytes any more.
func (p *Pin) Unpin() error {
	p.data = nil
	return checked(func() C.rp_status { return C.rp_unpin(p.pin) })
}

// Lock is a lock that a handle holds.
type Lock struct {
	handle *Handle
	number C.uint64_t
	token  C.uint64_t
}

// Lock locks bytes within one page, or the line of 64 bytes for 0, to write or to read.
func (h *Handle) Lock(ctx context.Context, addr Addr, bytes uint64, write bool) (*Lock, error) {
	mode := C.int(C.RP_LOCK_READ)
	if write {
		mode = C.RP_LOCK_WRITE
	}
	lock := &Lock{handle: h}
	err := h.within(ctx, func() C.rp_status {
		return C.rp_lock(h.handle, C.rp_addr(addr), C.uint64_t(bytes), mode,
			C.uint64_t(C.RP_WAIT_DEFAULT), &lock.number, &lock.token)
	})
	if err != nil {
		return nil, err
	}
	return lock, nil
}

// Token grows with each grant of the rack: for services that refuse what is old.
func (l *Lock) Token() uint64 {
	return uint64(l.token)
}

// Check asks whether it is still held; ErrLost if not.
func (l *Lock) Check(ctx context.Context) error {
	h := l.handle
	return h.within(ctx, func() C.rp_status { return C.rp_lock_check(h.handle, l.number) })
}

// Unlock gives it back; ErrLost if it was not ours any more.
func (l *Lock) Unlock(ctx context.Context) error {
	h := l.handle
	return h.within(ctx, func() C.rp_status { return C.rp_unlock(h.handle, l.number) })
}
