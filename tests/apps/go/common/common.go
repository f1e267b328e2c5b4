// Package common is what the applications in Go share.
package common

import (
	"fmt"
	"os"
)

// Addr is where the server listens.
func Addr() string {
	return fmt.Sprintf("%s:%s", os.Getenv("REDIS_HOST"), os.Getenv("REDIS_PORT"))
}

// Check ends the program with an error if something is not as it should be.
func Check(ok bool, what string, args ...any) {
	if !ok {
		fmt.Printf("Error: "+what+"\n", args...)
		os.Exit(1)
	}
}

// Must ends the program if there is an error.
func Must(err error) {
	Check(err == nil, "%v", err)
}
