package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/util/flushwriter"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	criapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/logs"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
)

// kubeletLogs serves the log endpoint of all simulated kubelets: GET
// /containerLogs/NAMESPACE/POD/CONTAINER. Logs are files in the format of CRI, below the folder of
// --logs as below /var/log/pods: NAMESPACE_POD_UID/CONTAINER/RESTARTS.log. The code that reads them
// is the kubelet's own, and so are the refusals. Which container runs is read from the API server.
func kubeletLogs() *cobra.Command {
	var kubeconfig, folder, address, certificate, key string
	command := &cobra.Command{
		Use:          "kubelet-logs",
		SilenceUsage: true,
		RunE: func(command *cobra.Command, _ []string) error {
			config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
			if err != nil {
				return err
			}
			config.QPS = -1
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				return err
			}
			factory := informers.NewSharedInformerFactory(client, 0)
			server := &logServer{client, factory.Core().V1().Pods().Lister(), folder}
			factory.Start(command.Context().Done())
			factory.WaitForCacheSync(command.Context().Done())
			routes := http.NewServeMux()
			routes.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", server.serve)
			return http.ListenAndServeTLS(address, certificate, key, routes)
		},
	}
	flags := command.Flags()
	flags.StringVar(&kubeconfig, "kubeconfig", "", "how to reach the API server")
	flags.StringVar(&folder, "logs", "", "the folder of all logs")
	flags.StringVar(&address, "address", "", "the address to serve at")
	flags.StringVar(&certificate, "tls-cert-file", "", "the certificate of the server")
	flags.StringVar(&key, "tls-private-key-file", "", "the key of the certificate")
	return command
}

type logServer struct {
	client kubernetes.Interface
	pods   listers.PodLister
	folder string
}

func (server *logServer) serve(response http.ResponseWriter, request *http.Request) {
	namespace, name := request.PathValue("namespace"), request.PathValue("pod")
	container := request.PathValue("container")
	options := &v1.PodLogOptions{}
	query := request.URL.Query()
	if err := legacyscheme.ParameterCodec.DecodeParameters(query, v1.SchemeGroupVersion, options); err != nil {
		refuse(response, http.StatusBadRequest, `{"message": "Unable to decode query."}`)
		return
	}
	// A kubelet knows the state of its containers before the API server does.
	pod, err := server.client.CoreV1().Pods(namespace).Get(request.Context(), name, metav1.GetOptions{})
	if err != nil {
		refuse(response, http.StatusNotFound, fmt.Sprintf("pod %q does not exist", name))
		return
	}
	id, err := chosenContainer(name, &pod.Status, container, options.Previous)
	if err != nil {
		refuse(response, http.StatusBadRequest, err.Error())
		return
	}
	path, err := server.path(pod, id)
	if err != nil {
		refuse(response, http.StatusBadRequest, err.Error())
		return
	}
	read := &logs.LogOptions{
		TailLines:  options.TailLines,
		LimitBytes: options.LimitBytes,
		Follow:     options.Follow,
		Timestamp:  options.Timestamps,
	}
	if options.SinceSeconds != nil {
		read.Since = time.Now().Add(-time.Duration(*options.SinceSeconds) * time.Second)
	}
	if options.SinceTime != nil && options.SinceTime.After(read.Since) {
		read.Since = options.SinceTime.Time
	}
	writer := flushwriter.Wrap(response)
	response.Header().Set("Transfer-Encoding", "chunked")
	response.Header().Set("Content-Type", "text/plain")
	// The head is sent before there is a line.
	if _, err := writer.Write([]byte{}); err != nil {
		return
	}
	state := containerState{logServer: server, namespace: namespace, pod: name}
	if err := logs.ReadLogs(request.Context(), path, id, read, state, writer, writer); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", path, err)
	}
}

func refuse(response http.ResponseWriter, status int, why string) {
	response.Header().Set("Content-Type", "text/plain")
	response.WriteHeader(status)
	fmt.Fprint(response, why)
}

// path is the log of a container, which exists from its start on. An ID is
// simulated://UID/CONTAINER/RESTARTS (tests/cluster/stages.yaml).
func (server *logServer) path(pod *v1.Pod, id string) (string, error) {
	words := strings.Split(strings.TrimPrefix(id, "simulated://"), "/")
	if len(words) != 3 {
		return "", fmt.Errorf("unable to retrieve container logs for %v", id)
	}
	folder := filepath.Join(
		server.folder, fmt.Sprintf("%s_%s_%s", pod.Namespace, pod.Name, words[0]), words[1])
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(folder, words[2]+".log")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return "", err
	}
	return path, file.Close()
}

// chosenContainer is the ID of the container whose log is asked for, as the kubelet's
// validateContainerLogStatus chooses it.
func chosenContainer(pod string, status *v1.PodStatus, name string, previous bool) (string, error) {
	found := statusOf(status, name)
	if found == nil {
		return "", fmt.Errorf("container %q in pod %q is not available", name, pod)
	}
	before := found.LastTerminationState.Terminated
	waiting, running, terminated := found.State.Waiting, found.State.Running, found.State.Terminated
	switch {
	case previous:
		if before == nil || before.ContainerID == "" {
			return "", fmt.Errorf("previous terminated container %q in pod %q not found", name, pod)
		}
		return before.ContainerID, nil
	case running != nil:
		return found.ContainerID, nil
	case terminated != nil && terminated.ContainerID != "":
		return terminated.ContainerID, nil
	case before != nil && before.ContainerID != "":
		return before.ContainerID, nil
	case terminated != nil || before != nil:
		return "", fmt.Errorf("container %q in pod %q is terminated", name, pod)
	case waiting == nil:
		return "", fmt.Errorf("container %q in pod %q is waiting to start - no logs yet", name, pod)
	}
	why := waiting.Reason
	switch why {
	case "ErrImagePull":
		why = "image can't be pulled"
	case "ImagePullBackOff":
		why = "trying and failing to pull image"
	}
	return "", fmt.Errorf("container %q in pod %q is waiting to start: %v", name, pod, why)
}

func statusOf(status *v1.PodStatus, name string) *v1.ContainerStatus {
	for _, several := range [][]v1.ContainerStatus{
		status.ContainerStatuses, status.InitContainerStatuses, status.EphemeralContainerStatuses,
	} {
		for index := range several {
			if several[index].Name == name {
				return &several[index]
			}
		}
	}
	return nil
}

// containerState tells the code of the kubelet whether a container of a pod runs.
type containerState struct {
	criapi.RuntimeService
	*logServer
	namespace, pod string
}

func (state containerState) ContainerStatus(
	ctx context.Context, id string, _ bool,
) (*runtimeapi.ContainerStatusResponse, error) {
	now := runtimeapi.ContainerState_CONTAINER_EXITED
	if pod, err := state.pods.Pods(state.namespace).Get(state.pod); err == nil && runs(pod, id) {
		now = runtimeapi.ContainerState_CONTAINER_RUNNING
	} else {
		// The informer may not have heard of the container yet.
		pod, err := state.client.CoreV1().Pods(state.namespace).Get(ctx, state.pod, metav1.GetOptions{})
		if err == nil && runs(pod, id) {
			now = runtimeapi.ContainerState_CONTAINER_RUNNING
		}
	}
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{State: now}}, nil
}

func runs(pod *v1.Pod, id string) bool {
	for _, several := range [][]v1.ContainerStatus{
		pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses,
	} {
		for _, one := range several {
			if one.ContainerID == id && one.State.Running != nil {
				return true
			}
		}
	}
	return false
}
