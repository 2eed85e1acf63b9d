// Command controlplane is kube-apiserver, kube-scheduler, kube-controller-manager, kubectl or the
// logs of kubelets, whichever name it is called by: they share most of their code.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func command(name string) *cobra.Command {
	switch name {
	case "kube-apiserver":
		return apiserver.NewAPIServerCommand()
	case "kube-scheduler":
		return scheduler.NewSchedulerCommand()
	case "kube-controller-manager":
		return controllermanager.NewControllerManagerCommand()
	case "kubectl":
		return kubectl.NewDefaultKubectlCommand()
	case "kubelet-logs":
		return kubeletLogs()
	}
	return nil
}

func main() {
	chosen := command(filepath.Base(os.Args[0]))
	if chosen == nil {
		fmt.Fprintln(os.Stderr, "call this by the name of a component of Kubernetes")
		os.Exit(2)
	}
	os.Exit(cli.Run(chosen))
}
