package rackpool

// #include <rackpool.h>
import "C"

import (
	"context"
	"unsafe"
)

// Status says what to do about a failure.
type Status int32

// Error is why a call failed.
type Error struct {
	Status Status
	Code   string // a stable word such as "not-mapped"
	Retry  bool   // whether the same call may succeed later
	Text   string // one line with numbers, units and the way out
}

// For errors.Is: they match every error of their status.
var (
	ErrNotFound       = &Error{Status: C.RP_NOT_FOUND}
	ErrLost           = &Error{Status: C.RP_LOST}
	ErrFull           = &Error{Status: C.RP_FULL}
	ErrBusy           = &Error{Status: C.RP_BUSY}
	ErrTimeout        = &Error{Status: C.RP_TIMEOUT}
	ErrUnreachable    = &Error{Status: C.RP_UNREACHABLE}
	ErrOutcomeUnknown = &Error{Status: C.RP_OUTCOME_UNKNOWN}
	ErrOccupied       = &Error{Status: C.RP_OCCUPIED}
	ErrInvalid        = &Error{Status: C.RP_INVALID}
	ErrDenied         = &Error{Status: C.RP_DENIED}
	ErrMisuse         = &Error{Status: C.RP_MISUSE}
)

// lastError is why the last call of this thread failed.
func lastError(status C.rp_status) *Error {
	text := make([]byte, 1024)
	length := int(C.rp_last_text((*C.char)(unsafe.Pointer(&text[0])), C.size_t(len(text))))
	return &Error{
		Status: Status(status),
		Code:   C.GoString(C.rp_last_code()),
		Retry:  C.rp_last_retry() != 0,
		Text:   string(text[:min(length, len(text)-1)]),
	}
}

func (e *Error) Error() string {
	return e.Text
}

// Is says whether the target is of the same status, or the deadline's of a time that ran out.
func (e *Error) Is(target error) bool {
	if target == context.DeadlineExceeded {
		return e.Status == C.RP_TIMEOUT
	}
	other, ok := target.(*Error)
	return ok && other.Status == e.Status
}
