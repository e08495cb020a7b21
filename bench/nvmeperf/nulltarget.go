package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
)

// nullTargetCommand is the target of a comparison, in a process of its own. ../target has one with flags.
func nullTargetCommand(*pflag.FlagSet) runner {
	return func(ctx context.Context, con console) error {
		tgt, err := nvmetest.Start(nvmetest.Config{Subsystems: []nvmetest.Subsystem{{
			NQN: nvmetest.DefaultNQN, Namespaces: []nvmetest.Namespace{{BlockSize: 512, Backend: nvmetest.Null(64 << 30)}},
		}}})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(con.out, tgt.Addr())
		if err == nil {
			<-ctx.Done()
		}
		return errors.Join(err, tgt.Close())
	}
}
